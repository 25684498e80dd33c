//! Protocols that are neither TLS nor HTTP, and clients that would pass for one.

use super::origin::echo;
use crate::harness::for_both;

/// Sends pieces with a pause between them and prints what comes back, and how long that took.
const SLOWLY: &str = "import socket,sys,time
s=socket.create_connection(('127.0.0.1',int(sys.argv[1])),20); s.settimeout(20)
start=time.time(); got=b''
for piece in sys.argv[2:]:
    s.sendall(piece.encode().decode('unicode_escape').encode('latin1'))
    try: got+=s.recv(999)
    except OSError: break
try: s.shutdown(socket.SHUT_WR); got+=s.recv(999)
except OSError: got+=b'<reset>'
print(got, 'quick' if time.time()-start<5 else 'slow')";

#[test]
fn half_a_line_of_a_raw_protocol_passes_soon_and_half_a_request_opens_nothing() {
    for_both(|lab| {
        let port = echo().port().to_string();
        let rule = format!("127.0.0.1:{port}");
        lab.skep(["create", "s", "--allow", &rule]).run().ok();
        let send = |pieces: &[&str]| {
            let call = lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", SLOWLY, &port]);
            call.args(pieces).run().ok().text()
        };
        assert_eq!(send(&["hel", "lo, no line end"]), "b'hello, no line end' quick");
        assert_eq!(send(&["one\\n", "GET / HTTP/1.1\\r\\n\\r\\n"]).matches("HTTP/1.1").count(), 1);
        // The first piece passes as text; the second would make a request of it, or a handshake.
        for pieces in [
            ["GET /", " HTTP/1.1\\r\\nHost: other.example\\r\\n\\r\\n"],
            ["\\x16", "\\x03\\x01\\x02\\x00\\x01"],
        ] {
            let text = send(&pieces);
            assert!(!text.contains("Host") && !text.contains("\\x03"), "{text}");
        }
        let log = lab.skep(["net", "s", "--json", "--denied"]).run().ok().json_lines();
        assert_eq!(
            log.iter().filter(|line| line["reason"] == "protocol-not-allowed").count(),
            2,
            "{log:?}"
        );
    });
}
