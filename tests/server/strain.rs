//! Clients that are slow, many, or say too much.

use crate::harness::{TOKEN, Who, for_each, long};
use rustix::process::{Resource, Rlimit};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn api_13_slow_and_many_clients_do_not_keep_others_waiting() {
    let followers = if long() { 10_000 } else { 530 };
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let connect = || {
            let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
            stream
        };
        let head = format!("Host: 127.0.0.1:{}\r\nAuthorization: Bearer {TOKEN}\r\n", server.port);
        // Half a head each, and then nothing.
        let slow: Vec<_> = (0..300)
            .map(|_| {
                let mut stream = connect();
                stream.write_all(b"GET /v1/sandboxes HTTP/1.1\r\nHost: 127").unwrap();
                stream
            })
            .collect();
        server.get("/v1/sandboxes").is(200);
        // Two at once on one connection are answered one after the other.
        let mut pipelined = connect();
        let two = format!(
            "GET /v1/whoami HTTP/1.1\r\n{head}\r\nGET /v1/sandboxes HTTP/1.1\r\n{head}Connection: close\r\n\r\n"
        );
        pipelined.write_all(two.as_bytes()).unwrap();
        let mut answers = String::new();
        pipelined.read_to_string(&mut answers).unwrap();
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
        // A head without end, and one with too many lines.
        let long = format!("X-Long: {}\r\n", "x".repeat(300 << 10));
        let many: String = (0..2000).map(|number| format!("X-{number}: 1\r\n")).collect();
        for flood in [long, many] {
            let mut stream = connect();
            let _ = write!(stream, "GET /v1/sandboxes HTTP/1.1\r\n{head}{flood}\r\n");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
        // More streams than there are places: told to come back, and nobody else is in the way.
        let streams: Vec<_> = (0..followers)
            .map(|_| {
                let mut stream = connect();
                write!(stream, "GET /v1/events/stream HTTP/1.1\r\n{head}\r\n").unwrap();
                stream
            })
            .collect();
        let refused = streams
            .into_iter()
            .map(|mut stream| {
                let mut start = [0; 12];
                stream.read_exact(&mut start).unwrap();
                (start, stream)
            })
            .collect::<Vec<_>>();
        let count = |status: &[u8]| refused.iter().filter(|one| &one.0[9..] == status).count();
        assert_eq!((count(b"200"), count(b"429")), (512, followers - 512));
        server.get("/v1/sandboxes").is(200);
        drop(refused);
        // Who never finished is let go.
        let mut first = slow.into_iter().next().unwrap();
        let mut answer = Vec::new();
        let _ = first.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        server.stop();
    });
}
