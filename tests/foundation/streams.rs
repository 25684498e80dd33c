//! Bytes in, bytes out: nothing lost, nothing added, nothing held up.

use crate::harness::{for_both, wait_for};
use std::io::Read as _;
use std::time::Duration;

/// Bytes that repeat at no power of two, with every value among them.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ (at / 251 % 256) as u8).collect()
}

#[test]
fn ten_megabytes_through_run_are_byte_exact() {
    for_both(|lab| {
        let input = bytes(10 << 20);
        let ran = lab.skep(["run", "--", "cat"]).input(input.clone()).run().ok();
        assert!(ran.stdout == input, "{} bytes came back", ran.stdout.len());
        lab.create("s");
        let ran = lab.skep(["exec", "-i", "s", "--", "wc", "-c"]).input(input.clone()).run().ok();
        assert_eq!(ran.text(), input.len().to_string());
    });
}

#[test]
fn a_reader_of_only_the_beginning_ends_the_pipe() {
    for_both(|lab| {
        let ran = lab.skep(["run", "--", "head", "-c", "3"]).input(bytes(5 << 20)).run().ok();
        assert_eq!(ran.stdout, bytes(3));
        // Without input the end is seen at once.
        assert_eq!(lab.skep(["run", "--", "cat"]).run().ok().text(), "");
    });
}

#[test]
fn streams_are_kept_apart() {
    for_both(|lab| {
        let ran =
            lab.skep(["run", "--quiet", "--", "sh", "-c", "echo out; echo err >&2"]).run().ok();
        assert_eq!((ran.text(), ran.errors()), ("out".to_owned(), "err\n".to_owned()));
    });
}

#[test]
fn heavy_200_megabytes_with_a_limit_and_a_slow_reader() {
    for_both(|lab| {
        const SIZE: u64 = 200 << 20;
        lab.create("s");
        let script = format!("printf START; head -c {SIZE} /dev/zero; printf END");
        let line = ["exec", "s", "--output-limit", "1M", "--", "sh", "-c", &script];
        let mut child = lab.skep(line).within(120).spawn();
        drop(child.stdin.take());
        let mut stdout = child.stdout.take().unwrap();
        let (mut buffer, mut read, mut last) = (vec![0; 1 << 20], 0_u64, Vec::new());
        loop {
            let length = stdout.read(&mut buffer).unwrap();
            if length == 0 {
                break;
            }
            // A reader that takes its time at the beginning must lose nothing.
            if read < 4 << 20 {
                std::thread::sleep(Duration::from_millis(20));
            }
            read += length as u64;
            last = buffer[length.saturating_sub(3)..length].to_vec();
        }
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(read, SIZE + 8);
        assert_eq!(last, b"END");
        // The log keeps head and tail, within the limit, and knows how much there was.
        let rows = lab.skep(["ps", "s", "--json"]).run().ok().json();
        assert_eq!(rows[0]["stats"]["stdout_bytes"], SIZE + 8, "{rows}");
        let exec = rows[0]["exec"].as_str().unwrap();
        let log = lab.skep(["logs", exec]).run().ok();
        assert!(log.stdout.len() <= 2 << 20, "{} bytes kept", log.stdout.len());
        assert!(log.stdout.starts_with(b"START") && log.stdout.ends_with(b"END"));
        // And with nobody reading at all the command still comes to its end.
        let exec = lab.skep(["exec", "-d", "s", "--output-limit", "1M", "--", "sh", "-c", &script]);
        let exec = exec.run().ok().text();
        let log = lab.skep(["logs", "-f", &exec]).within(120).run().ok();
        assert!(log.stdout.ends_with(b"END"));
    });
}

#[test]
fn a_reader_that_goes_away_ends_the_command_as_a_pipe_does() {
    for_both(|lab| {
        lab.create("s");
        let mut child = lab.skep(["exec", "s", "--", "yes"]).spawn();
        let mut beginning = [0; 6];
        child.stdout.take().unwrap().read_exact(&mut beginning).unwrap();
        assert_eq!(&beginning, b"y\ny\ny\n");
        let status = wait_for("skep to notice", 10, || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(141), "{status}");
        let row = wait_for("the end of the command", 10, || {
            let rows = lab.skep(["ps", "s", "--json"]).run().ok().json();
            (rows[0]["running"] == false).then(|| rows[0].clone())
        });
        assert_eq!(row["exit_code"], 141, "{row}");
    });
}
