"""Tries, from inside, what the rules do not allow. One line for each attempt: its label, and what came of it.

Allowed are http and https to origin.test (and with the word `more`, what a test names). Everything is
written by hand, byte for byte, so that no library is more careful than an attacker.
"""
import os, re, socket, ssl, struct, sys, time

PROXY = int(os.environ["HTTP_PROXY"].rsplit(":", 1)[1])
ORIGIN, OTHER = "93.184.216.34", "93.184.216.35"


def connect(host, port, family=socket.AF_INET):
    s = socket.socket(family)
    s.settimeout(20)
    s.connect((host, port))
    return s


def drain(s):
    data = b""
    try:
        while True:
            more = s.recv(65536)
            if not more:
                return data
            data += more
    except socket.timeout:
        return data + b"<hangs>"
    except OSError:
        return data + b"<reset>"


def shown(data):
    codes = re.findall(rb"HTTP/1\.[01] (\d+)", data)
    text = b" ".join(codes) + (b" origin" if b"origin origin.test" in data else b"") + (b" LEAK" if re.search(rb"origin (other|denied)\.test", data) else b"")
    for mark in (b"<hangs>", b"<reset>"):
        text += b" " + mark if mark in data else b""
    return text.decode().strip() or "closed"


def attempt(label, work):
    try:
        result = work()
    except OSError as error:
        result = f"error {type(error).__name__}"
    print(label, "->", result, flush=True)


def raw(host, port, data, family=socket.AF_INET):
    def work():
        s = connect(host, port, family)
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        return shown(drain(s))
    return work


def answered(data):
    s = connect(ORIGIN, 80)
    s.sendall(data)
    return drain(s)


def proxied(data):
    return raw("127.0.0.1", PROXY, data)


def get(host, path="/", extra=""):
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode()


def last(host, path="/"):
    return get(host, path, "Connection: close\r\n")


# net-4: CONNECT.
for target in ("denied.test:443", "origin.test:8000", "origin.test:0", "origin.test:65536", "origin.test:https", "origin.test", "1572395042:80",
               "0x5db8d822:80", "0135.0270.0330.042:80", "93.184.55330:80", f"[::ffff:{ORIGIN}]:80", f"{OTHER}:80", "0.0.0.0:80", "127.0.0.1:80",
               "[::]:80", "localhost:80", "origin.test@denied.test:443", "denied.test\\origin.test:443", "origin.test%00.denied.test:443"):
    attempt(f"connect {target}", proxied(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()))
attempt("connect disagrees", proxied(b"CONNECT denied.test:443 HTTP/1.1\r\nHost: origin.test:443\r\n\r\n"))
attempt("yes connect", proxied(b"CONNECT origin.test:80 HTTP/1.1\r\nHost: origin.test:80\r\n\r\n" + last("origin.test")))
attempt("yes dot", proxied(b"GET http://ORIGIN.test./ HTTP/1.1\r\nHost: ORIGIN.test.\r\nConnection: close\r\n\r\n"))

# net-5: what follows an allowed request on the same connection.
attempt("pipelined", raw(ORIGIN, 80, get("origin.test") + last("denied.test")))
attempt("pipelined other", raw(ORIGIN, 80, get("origin.test") + last("other.test")))
attempt("kept proxied", proxied(get("origin.test", "http://origin.test/") + last("denied.test", "http://denied.test/")))
attempt("nested connect", proxied(b"CONNECT origin.test:80 HTTP/1.1\r\nHost: origin.test:80\r\n\r\nCONNECT denied.test:443 HTTP/1.1\r\nHost: denied.test:443\r\n\r\n"))
attempt("other inside connect", proxied(b"CONNECT origin.test:80 HTTP/1.1\r\nHost: origin.test:80\r\n\r\n" + last("denied.test")))
attempt("proxy by proxy", proxied(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (PROXY, PROXY)))
attempt("absolute on a plain connection", raw(ORIGIN, 80, last("denied.test", "http://denied.test/")))

# net-6: requests that can be read in two ways; what is smuggled asks for other.test.
inner = last("other.test")
for label, data in {
    "length and chunks": b"POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(inner)) + inner,
    "chunks and length": b"POST / HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + inner,
    "after chunks": b"POST / HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
    "two lengths": b"POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner,
    "odd coding": b"POST / HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + inner,
    "two hosts": b"GET / HTTP/1.1\r\nHost: origin.test\r\nHost: other.test\r\n\r\n",
    "absolute and host": b"GET http://origin.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n",
    "folded": b"GET / HTTP/1.1\r\nHost: origin.test\r\nX: a\r\n Host: other.test\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: origin.test\n\n" + inner,
    "space before colon": b"GET / HTTP/1.1\r\nHost : other.test\r\nHost: origin.test\r\n\r\n",
    "large head": b"GET / HTTP/1.1\r\nHost: origin.test\r\nX: " + b"x" * 70000 + b"\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "upgrade refused": get("origin.test", "/", "Upgrade: x\r\nConnection: Upgrade\r\n") + inner,
}.items():
    attempt(f"odd {label}", raw(ORIGIN, 80, data))
chunk = b"POST / HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n%x;a=\n\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
attempt("odd chunk extension", raw(ORIGIN, 80, chunk))


# net-7: SOCKS5.
def socks(command, kind, address, port=80):
    def work():
        s = connect("127.0.0.1", PROXY)
        s.sendall(b"\5\1\0")
        if s.recv(2) != b"\5\0":
            return "no greeting"
        s.sendall(bytes([5, command, 0, kind]) + address + struct.pack(">H", port))
        reply = s.recv(10)
        return f"reply {reply[1]}" if len(reply) > 1 else "closed"
    return work


domain = lambda name: bytes([len(name)]) + name
attempt("socks name", socks(1, 3, domain(b"denied.test")))
attempt("socks address", socks(1, 1, socket.inet_aton(OTHER)))
attempt("socks six", socks(1, 4, socket.inet_pton(socket.AF_INET6, "::ffff:" + OTHER)))
attempt("socks decimal", socks(1, 3, domain(b"1572395042")))
attempt("socks nul", socks(1, 3, domain(b"origin.test\0.denied.test")))
attempt("socks bind", socks(2, 3, domain(b"origin.test")))
attempt("socks udp", socks(3, 3, domain(b"origin.test")))
attempt("yes socks", socks(1, 3, domain(b"origin.test")))

# net-14: TLS.
context = ssl.create_default_context(cafile="ca.crt")
loose = ssl.create_default_context(cafile="ca.crt")
loose.check_hostname = False


def tls(host, name, how=context, through=None):
    def work():
        s = connect("127.0.0.1", PROXY) if through else connect(host, 443)
        if through:
            s.sendall(f"CONNECT {through}:443 HTTP/1.1\r\nHost: {through}:443\r\n\r\n".encode())
            if b" 200 " not in s.recv(4096):
                return "403"
        s = how.wrap_socket(s, server_hostname=name)
        s.sendall(last(name or "origin.test"))
        return shown(drain(s))
    return work


attempt("yes tls", tls(ORIGIN, "origin.test"))
attempt("yes tls proxied", tls(None, "origin.test", through="origin.test"))
attempt("tls other name", tls(ORIGIN, "other.test"))
attempt("tls allowed name, other address", tls(OTHER, "origin.test"))
attempt("tls no name", tls(ORIGIN, None, loose))
attempt("tls other name than connect", tls(None, "other.test", through="origin.test"))
attempt("tls no name in connect", tls(None, None, loose, through="origin.test"))
attempt("tls none on 443", raw(ORIGIN, 443, b"hello\r\n"))
attempt("tls http on 443", raw(ORIGIN, 443, last("origin.test")))


def split():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    pieces = context.wrap_bio(incoming, outgoing, server_hostname="other.test")
    try:
        pieces.do_handshake()
    except ssl.SSLWantReadError:
        pass
    s = connect(ORIGIN, 443)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    hello = outgoing.read()
    for at in range(0, len(hello), 7):
        s.sendall(hello[at:at + 7])
    return "alert" if drain(s)[:1] == b"\x15" else "ANSWERED"


attempt("tls split hello", split)


def encrypted(name, target):
    """A hello as rustls, OpenSSL or Go would send it, with an encrypted one inside (RFC 9849): the name in the clear is the outer one."""
    def work():
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        pieces = context.wrap_bio(incoming, outgoing, server_hostname=name)
        try:
            pieces.do_handshake()
        except ssl.SSLWantReadError:
            pass
        hello = bytearray(outgoing.read())
        body = os.urandom(32)
        inner = b"\0" + b"\0\1\0\1" + b"\7" + struct.pack(">H", 32) + os.urandom(32) + struct.pack(">H", len(body)) + body
        more = struct.pack(">HH", 0xfe0d, len(inner)) + inner
        # Lengths: record, handshake, extensions; the last follow random, session, ciphers and compression.
        at = 5 + 4 + 2 + 32
        at += 1 + hello[at]
        at += 2 + struct.unpack(">H", hello[at:at + 2])[0]
        at += 1 + hello[at]
        hello += more
        hello[3:5] = struct.pack(">H", len(hello) - 5)
        hello[6:9] = struct.pack(">I", len(hello) - 9)[1:]
        hello[at:at + 2] = struct.pack(">H", len(hello) - at - 2)
        s = connect(target, 443)
        s.sendall(hello)
        s.settimeout(5)
        first = s.recv(1)
        return "alert" if first == b"\x15" else "closed" if not first else "ANSWERED 200" if first == b"\x16" else repr(first)
    return work


attempt("tls encrypted hello, other outer name", encrypted("denied.test", ORIGIN))
attempt("tls encrypted hello, allowed outer name, other address", encrypted("origin.test", OTHER))
attempt("yes tls encrypted hello to the outer name", encrypted("origin.test", ORIGIN))

# net-15: a host that plays the proxy, and proxies that somebody else names.
attempt("yes challenge", lambda: "200" if b"proxy-auth" not in (answer := answered(get("origin.test", "/challenge", "Proxy-Authorization: Basic c2VjcmV0\r\nConnection: close\r\n")).lower()) and b" 407 " in answer else repr(answer))
attempt("other proxy", raw(OTHER, 3128, b"CONNECT origin.test:443 HTTP/1.1\r\nHost: origin.test:443\r\n\r\n"))
attempt("configuration by name", lambda: str(socket.gethostbyname("wpad")))
attempt("configuration by request", proxied(last("wpad", "http://wpad/wpad.dat")))

# Other ways to say the same address, and other ways out.
attempt("mapped", raw("::ffff:" + OTHER, 80, last("other.test"), socket.AF_INET6))
attempt("yes mapped", raw("::ffff:" + ORIGIN, 80, last("origin.test"), socket.AF_INET6))
attempt("zero", raw("0.0.0.0", 80, last("origin.test")))
attempt("dns over tls", raw("93.184.216.53", 853, b"x" * 20))
attempt("dns over https", raw("93.184.216.53", 443, b"\x16\x03\x01\0\x05hello"))
attempt("raw to an unlisted port", raw(ORIGIN, 8000, last("origin.test")))
attempt("metadata", raw("169.254.169.254", 80, last("metadata.google.internal")))
print("seen", [p for p in os.listdir("/proc") if p.isdigit() and b"__egress" in open(f"/proc/{p}/cmdline", "rb").read()])
