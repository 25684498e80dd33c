//! Hosts as people write them: the command line and the API read them alike.

use crate::harness::{Lab, Who, for_each};
use serde_json::{Value, json};

/// What is allowed after each spelling was added both ways, and nothing where it is refused.
#[test]
fn api_14_the_command_line_and_the_api_read_a_host_the_same() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        for name in ["typed", "asked"] {
            lab.skep(["create", name, "--allow", "base.test"]).run().ok();
        }
        let rules = |name: &str| -> Vec<String> {
            let all = lab.sandbox(name)["network"]["allow"].clone();
            let all = all.as_array().cloned().unwrap_or_default();
            all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let mut refused = 0;
        let texts = [
            "example.test:8443",
            "EXAMPLE.Test:8443",
            "example.test.:8443",
            "*.Example.test",
            "b\u{fc}cher.test",
            "xn--bcher-kva.test",
            "192.0.2.7:443",
            "192.0.2.007:443",
            "0xC0000207:443",
            "3221225991:443",
            "[2001:DB8::0:1]:443",
            "[::ffff:192.0.2.7]:443",
            "192.0.2.0/24:443",
            "192.0.2.9/24:443",
            "https://example.test",
            "user@example.test",
            "example.test:08443",
            "example.test:65536",
            "exa mple.test",
            "example.test%00.evil.test",
            "example.test#",
            "a..test",
            "127.1:80",
            "169.254.169.254:80",
            "@npm",
            "@NPM",
        ];
        for text in texts {
            let typed = lab.skep(["net", "allow", "typed", text]).run();
            let asked = server.post("/v1/sandboxes/asked/net", &json!({ "allow": [text] }));
            match typed.code() {
                0 => assert_eq!(asked.status, 200, "{text}"),
                code => {
                    refused += 1;
                    assert_eq!((code, asked.status), (2, 400), "{text}: {}", typed.describe());
                }
            }
            assert_eq!(rules("typed"), rules("asked"), "{text}");
        }
        assert!(refused >= 10, "{refused}");
        the_proxy_reads_them_so_too(lab, &texts);
        let all = rules("typed");
        // Spellings of one host are one rule.
        let one = |text: &str| all.iter().filter(|rule| rule.to_lowercase().contains(text)).count();
        assert_eq!(one("example.test:8443"), 1, "{all:?}");
        assert!(all.iter().all(|rule| *rule == rule.to_lowercase()), "{all:?}");
        server.stop();
    });
}

/// Asks the proxy for each in its own spelling, and prints what it answered.
const CONNECT: &str = "import json,os,socket,sys
port=int(os.environ['HTTP_PROXY'].rsplit(':',1)[1])
for text in sys.argv[1:]:
    s=socket.create_connection(('127.0.0.1',port)); s.settimeout(20)
    s.sendall(('CONNECT %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n' % (text,text)).encode()); s.shutdown(1)
    answer=b''.join(iter(lambda: s.recv(4096), b''))
    head,_,body=answer.partition(b'\\r\\n\\r\\n')
    try: reason=json.loads(body)['error']
    except ValueError: reason='none'
    print(text, '->', head.split(b' ')[1].decode() if head else 'closed', reason)
";

/// The same spellings in requests to the proxy: what is a host for rules is that host for it, and what is none is
/// none. All of them are allowed by now, and none has an address, or is a public one.
fn the_proxy_reads_them_so_too(lab: &Lab, texts: &[&str]) {
    let asked: Vec<&str> = texts
        .iter()
        .copied()
        .filter(|text| !text.starts_with(['*', '@']) && !text.contains('/'))
        .collect();
    let call = lab.skep(["exec", "typed", "--", "/usr/bin/python3", "-c", CONNECT]);
    let said = call.args(&asked).within(120).run().ok().text();
    let answer = |text: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{text} -> ")));
        line.unwrap_or_else(|| panic!("no answer for {text}: {said}")).to_owned()
    };
    for text in ["example.test:8443", "EXAMPLE.Test:8443", "example.test.:8443"] {
        // Allowed, and looked for: nobody has that name.
        assert_eq!(answer(text), "502 no-answer", "{said}");
    }
    for text in [
        "0xC0000207:443",
        "3221225991:443",
        "192.0.2.007:443",
        "user@example.test",
        "example.test:08443",
        "example.test:65536",
        "exa mple.test",
        "example.test%00.evil.test",
        "example.test#",
        "a..test",
        "127.1:80",
    ] {
        assert!(answer(text).starts_with("400"), "{text}: {said}");
    }
    assert_eq!(answer("169.254.169.254:80"), "403 metadata", "{said}");
}
