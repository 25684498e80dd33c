//! Real clients on their way out: each reaches what is allowed, by the means it has, and what is not
//! allowed it does not reach. Half of them know nothing of proxies, or are told to forget them.

use super::world::{World, in_world, in_world_as};
use crate::harness::{Ran, Who};

/// Prints `LABEL: ` and the last line of what a command says, errors included.
const SAY: &str = "say() { label=$1; shift; echo \"$label: $(\"$@\" 2>&1 | tail -n 1)\"; }
alone() { env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy \"$@\"; }
";

fn run(world: &World<'_>, rules: &[&str], script: &str) -> Ran {
    world.call(rules, &format!("{SAY}{script}")).run()
}

/// Each of these lines is there.
#[track_caller]
fn says(ran: &Ran, lines: &[&str]) {
    let text = ran.text();
    for line in lines {
        assert!(
            text.lines().any(|found| found.starts_with(line)),
            "no `{line}`: {}",
            ran.describe()
        );
    }
}

/// Nobody was reached but the origin, by whatever name.
#[track_caller]
fn only_origin(world: &World<'_>) {
    for request in world.requests() {
        let host = request["host"].as_str().unwrap();
        assert!(request["at"] == super::world::ORIGIN, "{request}");
        assert!(host.starts_with("origin.test"), "{request}");
    }
    let heard = world.heard();
    let names = heard["names"].as_array().unwrap();
    assert!(names.iter().all(|name| name != "denied.test"), "{names:?}");
}

#[test]
fn curl_and_wget_by_proxy_and_without() {
    in_world(&[], |world| {
        let ran = run(
            world,
            &["origin.test"],
            "say http curl -sS http://origin.test/
say https curl -sS --cacert ca.crt https://origin.test/
say direct curl -sS --noproxy '*' http://origin.test/
say direct-tls curl -sS --noproxy '*' --cacert ca.crt https://origin.test/
say socks curl -sS --proxy socks5h://${HTTP_PROXY#http://} --cacert ca.crt https://origin.test/
say wget wget -qO- http://origin.test/
say wget-tls wget -qO- --no-proxy --ca-certificate=ca.crt https://origin.test/
say no-proxied curl -sS http://denied.test/
say no-direct curl -sS --noproxy '*' http://denied.test/
say no-host curl -sS --noproxy '*' -H 'Host: denied.test' http://origin.test/
say no-name curl -sS --noproxy '*' --cacert ca.crt --connect-to denied.test:443:origin.test:443 https://denied.test/
say no-port curl -sS --noproxy '*' http://origin.test:8000/
say no-wget wget -qO- --no-proxy http://denied.test/ && echo
",
        );
        says(
            &ran,
            &[
                "http: origin origin.test",
                "https: origin origin.test",
                "direct: origin origin.test",
                "direct-tls: origin origin.test",
                "socks: origin origin.test",
                "wget: origin origin.test",
                "wget-tls: origin origin.test",
                "no-proxied: {\"error\":\"not-allowed\"",
                "no-direct: curl: (6)",
                "no-host: {\"error\":\"not-allowed\"",
                "no-name: curl: (35)",
            ],
        );
        assert!(!ran.text().contains("no-port: origin"), "{}", ran.describe());
        only_origin(world);
    });
}

#[test]
fn git_over_https_ssh_and_its_own_protocol() {
    in_world_as([Who::user()], &["repository", "git", "sshd"], |world| {
        let key = std::fs::read(world.place.join("ssh/user")).unwrap();
        world.lab.write("key", key);
        let who = match world.lab.who {
            Who::User { uid, .. } => uid,
            Who::Root => 0,
        };
        let script = format!(
            "export GIT_SSL_CAINFO=$PWD/ca.crt GIT_SSH_COMMAND=\"ssh -i $PWD/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20\"
chmod 600 key
u=$(getent passwd {who} | cut -d: -f1)
git clone -q https://origin.test/repo.git a 2>&1; say https cat a/file
alone git clone -q https://origin.test/repo.git b 2>&1; say direct cat b/file
git clone -q ssh://$u@origin.test:2222{place}/www/repo.git c 2>&1; say ssh cat c/file
git clone -q git://origin.test/repo.git d 2>&1; say git cat d/file
say no-https git clone -q https://denied.test/repo.git e
say no-ssh git clone -q ssh://$u@denied.test:2222{place}/www/repo.git f
say no-git git clone -q git://denied.test/repo.git g
say no-port git clone -q ssh://$u@origin.test:22{place}/www/repo.git h
ls -d e f g h 2>/dev/null",
            place = world.place.display()
        );
        let rules = ["origin.test", "origin.test:2222", "origin.test:9418"];
        let ran = run(world, &rules, &script);
        says(&ran, &["https: from-git", "direct: from-git", "ssh: from-git", "git: from-git"]);
        for label in ["no-https: ", "no-ssh: ", "no-git: ", "no-port: "] {
            says(&ran, &[label]);
        }
        let last = ran.text().lines().last().unwrap().to_owned();
        assert!(last.starts_with("no-port"), "something was cloned: {}", ran.describe());
        only_origin(world);
    });
}

#[test]
fn pip_and_npm_from_local_registries() {
    in_world_as([Who::user()], &[], |world| {
        let ran = run(
            world,
            &["origin.test"],
            "export HOME=$PWD
pip='/usr/bin/python3 -m pip --disable-pip-version-check -q --no-cache-dir install --no-deps --retries 0'
$pip --cert ca.crt --index-url https://origin.test/simple --target one skepdemo 2>&1
say pip /usr/bin/python3 -c 'import sys; sys.path.insert(0,\"one\"); import skepdemo; print(skepdemo.VALUE)'
alone $pip --cert ca.crt --index-url https://origin.test/simple --target two skepdemo 2>&1
say pip-direct /usr/bin/python3 -c 'import sys; sys.path.insert(0,\"two\"); import skepdemo; print(skepdemo.VALUE)'
say no-pip $pip --index-url http://denied.test/simple --trusted-host denied.test --target three skepdemo
mkdir n; cd n; echo '{}' > package.json
npm='npm --no-audit --no-fund --no-update-notifier --fetch-retries=0 --cafile=../ca.crt install'
$npm --registry https://origin.test/ skepdemo 2>&1
say npm node -p \"require('skepdemo')\"
rm -rf node_modules package-lock.json; echo '{}' > package.json
alone $npm --registry https://origin.test/ skepdemo 2>&1
say npm-direct node -p \"require('skepdemo')\"
rm -rf node_modules package-lock.json; echo '{}' > package.json
say no-npm $npm --registry http://denied.test/ skepdemo
ls node_modules 2>/dev/null; ls ../three 2>/dev/null; echo end",
        );
        says(
            &ran,
            &["pip: from-pip", "pip-direct: from-pip", "npm: from-npm", "npm-direct: from-npm"],
        );
        assert!(
            ran.text().lines().rev().nth(1).unwrap().starts_with("no-npm"),
            "{}",
            ran.describe()
        );
        only_origin(world);
    });
}

#[test]
fn node_fetch_and_web_sockets_know_no_proxy() {
    in_world(&[], |world| {
        let socket = r#"
import base64,os,socket,ssl,sys
host,port,tls=sys.argv[1],int(sys.argv[2]),len(sys.argv)>3
s=socket.create_connection((host,port),20)
if tls: s=ssl.create_default_context(cafile='ca.crt').wrap_socket(s,server_hostname=host)
s.sendall(('GET /ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n' % (host,base64.b64encode(os.urandom(16)).decode())).encode())
head=b''
while not head.endswith(b'\r\n\r\n'): head+=s.recv(1)
print(head.split(b'\r\n')[0].decode())
if b' 101 ' in head.split(b'\r\n')[0]:
    s.sendall(b'\x81\x85\0\0\0\0hello'); print('said '+s.recv(64)[2:].decode())
"#;
        world.lab.write("talk.py", socket);
        let ran = run(
            world,
            &["origin.test"],
            "export NODE_EXTRA_CA_CERTS=$PWD/ca.crt
f='fetch(process.argv[1]).then(r=>r.text()).then(t=>console.log(t.trim()),e=>console.log(e.cause&&e.cause.code))'
say http node -e \"$f\" http://origin.test/
say https node -e \"$f\" https://origin.test/
say no-http node -e \"$f\" http://denied.test/
say no-address node -e \"$f\" http://93.184.216.35/
say ws /usr/bin/python3 talk.py origin.test 80
say wss /usr/bin/python3 talk.py origin.test 443 tls
say no-ws /usr/bin/python3 talk.py 93.184.216.35 80",
        );
        says(
            &ran,
            &[
                "http: origin origin.test",
                "https: origin origin.test",
                "no-http: ENOTFOUND",
                "no-address: {\"error\":\"not-allowed\"",
                "ws: said hello",
                "wss: said hello",
                "no-ws: HTTP/1.1 403",
            ],
        );
        only_origin(world);
    });
}

#[test]
fn python_clients() {
    in_world_as([Who::user()], &[], |world| {
        let script = r#"
import asyncio,http.client,os,ssl,sys,urllib.request
import aiohttp,httpx,requests
context=ssl.create_default_context(cafile='ca.crt')
def say(label,f):
    try: print(label+':',f().strip())
    except Exception as e: print(label+': no',type(e).__name__)
def plain(host):
    c=http.client.HTTPConnection(host,timeout=20); c.request('GET','/'); return c.getresponse().read().decode()
async def fetch(url,trust):
    async with aiohttp.ClientSession(trust_env=trust) as s:
        async with s.get(url,ssl=context) as r: return await r.text()
alone=requests.Session(); alone.trust_env=False
for host in ('origin.test','denied.test'):
    say('urllib '+host,lambda: urllib.request.urlopen('https://'+host+'/',context=context,timeout=20).read().decode())
    say('http.client '+host,lambda: plain(host))
    say('requests '+host,lambda: requests.get('https://'+host+'/',verify='ca.crt',timeout=20).text)
    say('requests-direct '+host,lambda: alone.get('https://'+host+'/',verify='ca.crt',timeout=20).text)
    say('httpx '+host,lambda: httpx.get('https://'+host+'/',verify=context,timeout=20).text)
    say('httpx-direct '+host,lambda: httpx.get('https://'+host+'/',verify=context,timeout=20,trust_env=False).text)
    say('aiohttp '+host,lambda: asyncio.run(fetch('https://'+host+'/',True)))
    say('aiohttp-direct '+host,lambda: asyncio.run(fetch('https://'+host+'/',False)))
"#;
        world.lab.write("clients.py", script);
        let ran = world.run(&["origin.test"], "/usr/bin/python3 clients.py").ok();
        for client in [
            "urllib",
            "http.client",
            "requests",
            "requests-direct",
            "httpx",
            "httpx-direct",
            "aiohttp",
            "aiohttp-direct",
        ] {
            let (yes, no) = (
                format!("{client} origin.test: origin origin.test"),
                format!("{client} denied.test: no"),
            );
            says(&ran, &[&yes, &no]);
        }
        only_origin(world);
    });
}

#[test]
fn psql_in_the_clear_and_in_tls() {
    in_world_as([Who::user()], &["postgres"], |world| {
        let ran = run(
            world,
            &["db.test:5432"],
            "export PGCONNECT_TIMEOUT=20
q='select case when ssl then version else $$clear$$ end from pg_stat_ssl where pid=pg_backend_pid()'
say clear psql -XAtc \"$q\" 'host=db.test user=skep dbname=postgres sslmode=disable'
say tls psql -XAtc \"$q\" \"host=db.test user=skep dbname=postgres sslmode=verify-full sslrootcert=$PWD/ca.crt\"
say no psql -XAtc \"$q\" 'host=denied.test user=skep dbname=postgres'
say no-port psql -XAtc \"$q\" 'host=db.test port=5433 user=skep dbname=postgres'",
        );
        says(&ran, &["clear: clear", "tls: TLSv1", "no: ", "no-port: "]);
        for line in ["no: TLSv1", "no: clear", "no-port: TLSv1", "no-port: clear"] {
            assert!(!ran.text().contains(line), "{}", ran.describe());
        }
        let packets = world.packets();
        assert!(
            packets.iter().all(|to| to.starts_with("udp ") || to == "tcp 93.184.216.34:5432"),
            "{packets:?}"
        );
    });
}

#[test]
fn http2_and_grpc() {
    in_world_as([Who::user()], &["http2", "grpc"], |world| {
        let script = r#"
import sys,grpc
host,port,tls,proxy=sys.argv[1],sys.argv[2],sys.argv[3]=='tls',sys.argv[4]=='proxy'
options=[('grpc.enable_http_proxy',int(proxy))]
channel=grpc.secure_channel(host+':'+port,grpc.ssl_channel_credentials(open('ca.crt','rb').read()),options) if tls else grpc.insecure_channel(host+':'+port,options)
try: print(channel.unary_unary('/lab.Lab/Say')(b'hello',timeout=20).decode())
except grpc.RpcError as e: print('no',e.code().name)
"#;
        world.lab.write("rpc.py", script);
        let ran = run(
            world,
            &["origin.test:8080", "origin.test:8443", "origin.test:50051", "origin.test:50052"],
            "say h2c curl -sS --noproxy '*' --http2-prior-knowledge -d ping http://origin.test:8080/x
say h2 curl -sS --http2 --cacert ca.crt -d ping https://origin.test:8443/x
say nghttp nghttp http://origin.test:8080/x
say no-host nghttp -H ':authority: denied.test:8080' http://origin.test:8080/x
for proxy in proxy direct; do
say rpc-$proxy /usr/bin/python3 rpc.py origin.test 50051 clear $proxy
say rpcs-$proxy /usr/bin/python3 rpc.py origin.test 50052 tls $proxy
say no-rpc-$proxy /usr/bin/python3 rpc.py denied.test 50051 clear $proxy
done",
        );
        says(
            &ran,
            &[
                "h2c: http2 origin.test:8080 ping",
                "h2: http2 origin.test:8443 ping",
                "nghttp: http2 origin.test:8080",
                "no-host: {\"error\":\"not-allowed\"",
                "rpc-proxy: grpc hello",
                "rpc-direct: grpc hello",
                "rpcs-proxy: grpc hello",
                "rpcs-direct: grpc hello",
                "no-rpc-proxy: no UNAVAILABLE",
                "no-rpc-direct: no UNAVAILABLE",
            ],
        );
    });
}

/// A program of Rust's standard library: names by the system, connections by hand.
const RUST: &str = r#"
use std::io::{Read, Write};
fn main() {
    for host in std::env::args().skip(1) {
        let said = std::net::TcpStream::connect((host.as_str(), 80)).and_then(|mut stream| {
            write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text.lines().last().unwrap_or_default().to_owned())
        });
        println!("{host}: {}", said.unwrap_or_else(|error| format!("no {error}")));
    }
}
"#;

#[test]
fn a_rust_client() {
    in_world_as([Who::user()], &[], |world| {
        let source = world.lab.write("client.rs", RUST);
        let made = std::process::Command::new("rustc")
            .arg(&source)
            .arg("-o")
            .arg(world.lab.project.join("client"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let ran =
            world.run(&["origin.test"], "./client origin.test denied.test 93.184.216.35").ok();
        says(
            &ran,
            &["origin.test: origin origin.test", "denied.test: no ", "93.184.216.35: {\"error\""],
        );
        only_origin(world);
    });
}

/// Go has a resolver and a TLS of its own. Its client reads proxy variables unless told not to.
const GO: &str = r#"package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	pool := x509.NewCertPool()
	authority, _ := os.ReadFile("ca.crt")
	pool.AppendCertsFromPEM(authority)
	for _, way := range []string{"proxy", "direct"} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
		if way == "proxy" {
			transport.Proxy = http.ProxyFromEnvironment
		}
		client := http.Client{Transport: transport, Timeout: 20 * time.Second}
		for _, url := range os.Args[1:] {
			text := "no"
			answer, err := client.Get(url)
			if err == nil {
				body, _ := io.ReadAll(answer.Body)
				answer.Body.Close()
				text = strings.TrimSpace(string(body))
			}
			fmt.Printf("%s %s: %s\n", way, url, text)
		}
	}
}
"#;

#[test]
fn a_go_client() {
    in_world_as([Who::user()], &[], |world| {
        let source = world.lab.write("client.go", GO);
        // What Go's own packages were compiled to is kept: it takes half a minute.
        let cache = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/go-cache");
        let made = std::process::Command::new("go")
            .args(["build", "-o", "client"])
            .arg(&source)
            .current_dir(&world.lab.project)
            .env("GOCACHE", cache)
            .env("GOPATH", world.lab.root.join("go"))
            .env("GOFLAGS", "-mod=mod")
            .env("GO111MODULE", "off")
            .env("CGO_ENABLED", "0")
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let urls =
            "http://origin.test/ https://origin.test/ http://denied.test/ https://denied.test/";
        let ran =
            world.run(&["origin.test"], &format!("./client {urls} http://93.184.216.35/")).ok();
        for way in ["proxy", "direct"] {
            let (clear, tls) = (
                format!("{way} http://origin.test/: origin origin.test"),
                format!("{way} https://origin.test/: origin origin.test"),
            );
            let (no, address) = (
                format!("{way} https://denied.test/: no"),
                format!("{way} http://93.184.216.35/: {{\"error\":\"not-allowed\""),
            );
            says(&ran, &[&clear, &tls, &no, &address]);
        }
        says(
            &ran,
            &[
                "proxy http://denied.test/: {\"error\":\"not-allowed\"",
                "direct http://denied.test/: no",
            ],
        );
        only_origin(world);
    });
}
