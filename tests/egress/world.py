"""A small internet for tests: names, web servers, registries, repositories, a data base.

It is started in a network namespace of its own, whose loopback gets public addresses, so that a
sandbox made in that namespace meets what it would meet outside, and nothing here can reach the
machine's network. It prints a line when everything listens. For each line it reads it prints what it
has heard so far, as JSON: requests, names asked for, and where packets went. It ends with its input.
"""
import base64, hashlib, http.server, io, json, os, socket, socketserver, ssl, struct, subprocess, sys, threading, time, zipfile, tarfile

ORIGIN, OTHER, NAMES = "93.184.216.34", "93.184.216.35", "93.184.216.53"
ORIGIN6, OTHER6 = "2606:2800:220:1::34", "2606:2800:220:1::35"
TABLE = {"origin.test": [ORIGIN], "a.origin.test": [ORIGIN], "b.a.origin.test": [ORIGIN], "db.test": [ORIGIN],
         "other.test": [OTHER], "denied.test": [OTHER], "private.test": ["10.0.0.1"], "mixed.test": [ORIGIN, "10.0.0.1"],
         "metadata.test": ["169.254.169.254"], "zero.test": ["0.0.0.0"], "both.test": [ORIGIN], "half.test": [ORIGIN]}
TABLE6 = {"six.test": [ORIGIN6], "both.test": [ORIGIN6], "private6.test": ["fd00::1"], "half.test": ["fd00::1"],
          "mapped.test": ["::ffff:10.0.0.1"], "metadata6.test": ["fd00:ec2::254"]}
place, owner, services = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
heard = {"requests": [], "names": [], "packets": []}
children, www = [], os.path.join(place, "www")


def quietly(*words, **rest):
    done = subprocess.run(words, capture_output=True, **rest)
    if done.returncode:
        sys.exit(f"{words}: {done.stdout.decode()}{done.stderr.decode()}")
    return done.stdout.decode()


def daemon(*words, **rest):
    log = open(os.path.join(place, "daemons.log"), "ab")
    children.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **rest))


def network():
    quietly("ip", "link", "set", "lo", "up")
    for address in (ORIGIN, OTHER, NAMES):
        quietly("ip", "address", "add", address + "/32", "dev", "lo")
    for address in (ORIGIN6, OTHER6):
        quietly("ip", "address", "add", address + "/128", "dev", "lo", "nodad")
    quietly("ip", "route", "add", "default", "dev", "lo")


def capture():
    """Where packets went that open something: the first of a TCP connection, and every other one."""
    taken = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))

    def loop():
        while True:
            packet, (_, kind, direction, *_) = taken.recvfrom(65535)
            if direction != 4:  # PACKET_OUTGOING: each is seen once
                continue
            if kind == 0x0800 and packet[9] == 6:
                start = (packet[0] & 15) * 4
                if packet[start + 13] & 0x12 == 2:
                    heard["packets"].append(f"tcp {socket.inet_ntoa(packet[16:20])}:{struct.unpack('>H', packet[start + 2:start + 4])[0]}")
            elif kind == 0x0800 and packet[9] == 17:
                start = (packet[0] & 15) * 4
                source, target = struct.unpack(">HH", packet[start:start + 4])
                if source != 53:
                    heard["packets"].append(f"udp {socket.inet_ntoa(packet[16:20])}:{target}")
            elif kind == 0x86dd and packet[6] == 6:
                if packet[53] & 0x12 == 2:
                    to = socket.inet_ntop(socket.AF_INET6, packet[24:40])
                    heard["packets"].append(f"tcp [{to}]:{struct.unpack('>H', packet[42:44])[0]}")
            else:
                heard["packets"].append(f"other {kind:#x} {packet[:40].hex()}")
    threading.Thread(target=loop, daemon=True).start()


def names():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((NAMES, 53))
    flips = {"n": 0}

    def loop():
        while True:
            query, sender = server.recvfrom(4096)
            at, labels = 12, []
            while query[at]:
                labels.append(query[at + 1:at + 1 + query[at]].decode("latin1").lower())
                at += 1 + query[at]
            name, (kind,) = ".".join(labels), struct.unpack(">H", query[at + 1:at + 3])
            heard["names"].append(name)
            found = TABLE.get(name)
            if name == "flip.test" and kind == 1:
                # Public when it is checked, private when it is asked again.
                flips["n"] += 1
                found = [ORIGIN] if flips["n"] == 1 else ["127.0.0.1"]
            if name.endswith(".wild.test"):
                found = [ORIGIN]
            given = found if found and kind == 1 else TABLE6.get(name, []) if kind == 28 else []
            code = 0 if found or name in TABLE6 else 3
            reply = query[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(given), 0, 0) + query[12:at + 5]
            for address in given:
                packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
                reply += struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(packed)) + packed
            server.sendto(reply, sender)
    threading.Thread(target=loop, daemon=True).start()


def certificates():
    authority, key = os.path.join(place, "ca.pem"), os.path.join(place, "ca.key")
    leaf, request = os.path.join(place, "leaf.pem"), os.path.join(place, "leaf.csr")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    quietly("openssl", "req", "-x509", *curve, "-keyout", key, "-out", authority, "-subj", "/CN=lab", "-days", "2",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    quietly("openssl", "req", "-new", *curve, "-keyout", leaf[:-3] + "key", "-out", request, "-subj", "/CN=origin.test")
    extensions = os.path.join(place, "leaf.ext")
    with open(extensions, "w") as file:
        file.write("subjectAltName=DNS:origin.test,DNS:*.origin.test,DNS:other.test,DNS:db.test,DNS:denied.test,DNS:six.test,DNS:both.test,IP:2606:2800:220:1::34\n")
    quietly("openssl", "x509", "-req", "-in", request, "-CA", authority, "-CAkey", key, "-CAcreateserial", "-days", "2",
            "-extfile", extensions, "-out", leaf)


class Web(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def give(self, body, kind="text/plain", code=200, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        scheme = "https" if isinstance(self.connection, ssl.SSLSocket) else "http"
        host = self.headers.get("Host", "")
        heard["requests"].append({"at": self.server.server_address[0], "scheme": scheme, "host": host, "line": self.requestline,
                                  "headers": dict(self.headers), "body": body.decode("latin1")})
        path = self.path.split("?")[0]
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.web_socket()
        if path == "/echo":
            return self.give((str(self.headers) + "\n").encode() + body)
        if path == "/challenge":
            return self.give(b"", code=407, Proxy_Authenticate="Basic realm=lab")
        if path.startswith("/redirect/"):
            return self.give(b"", code=302, Location=path[len("/redirect/"):].replace("_", "/"))
        if path.startswith("/large/"):
            return self.give(b"x" * int(path[7:]))
        file = os.path.normpath(www + path)
        if file.startswith(www) and os.path.isdir(file):
            file += "/index.html"
        if file.startswith(www) and os.path.isfile(file):
            with open(file, "rb") as opened:
                kind = "text/html" if file.endswith(".html") else "application/json" if file.endswith(".json") else "application/octet-stream"
                text = opened.read().replace(b"@BASE@", f"{scheme}://{host}".encode())
                return self.give(text, kind)
        if path == "/":
            return self.give(f"origin {host}\n".encode())
        self.give(b"nothing\n", code=404)

    do_GET = do_POST = do_PUT = do_HEAD = answer

    def web_socket(self):
        """The handshake, then one short message comes back."""
        accept = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", base64.b64encode(accept).decode())):
            self.send_header(name, value)
        self.end_headers()
        head = self.rfile.read(6)
        mask, text = head[2:6], self.rfile.read(head[1] & 127)
        self.wfile.write(bytes([0x81, len(text)]) + bytes(byte ^ mask[at % 4] for at, byte in enumerate(text)))
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self):
        # HTTPServer's own asks for the name of the address, and nobody here would answer.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


def web():
    files = os.path.join(www, "files")
    os.makedirs(files)
    with zipfile.ZipFile(os.path.join(files, "skepdemo-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("skepdemo.py", "VALUE = 'from-pip'\n")
        wheel.writestr("skepdemo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: skepdemo\nVersion: 1.0\n")
        wheel.writestr("skepdemo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("skepdemo-1.0.dist-info/RECORD", "skepdemo.py,,\nskepdemo-1.0.dist-info/METADATA,,\nskepdemo-1.0.dist-info/WHEEL,,\nskepdemo-1.0.dist-info/RECORD,,\n")
    os.makedirs(os.path.join(www, "simple/skepdemo"))
    with open(os.path.join(www, "simple/skepdemo/index.html"), "w") as index:
        index.write('<!DOCTYPE html><a href="/files/skepdemo-1.0-py3-none-any.whl">skepdemo-1.0-py3-none-any.whl</a>')
    package = io.BytesIO()
    with tarfile.open(fileobj=package, mode="w:gz") as archive:
        for name, text in (("package/package.json", '{"name":"skepdemo","version":"1.0.0","main":"i.js"}'), ("package/i.js", "module.exports='from-npm'")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    with open(os.path.join(files, "skepdemo-1.0.0.tgz"), "wb") as file:
        file.write(package.getvalue())
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(package.getvalue()).digest()).decode()
    with open(os.path.join(www, "skepdemo"), "w") as file:
        json.dump({"name": "skepdemo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "skepdemo", "version": "1.0.0",
                   "dist": {"tarball": "@BASE@/files/skepdemo-1.0.0.tgz", "integrity": integrity}}}}, file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(place, "leaf.pem"), os.path.join(place, "leaf.key"))
    context.set_alpn_protocols(["http/1.1"])
    for address in (ORIGIN, OTHER, ORIGIN6, OTHER6):
        Server.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for port in (80, 443, 8000):
            server = Server((address, port), Web)
            if port == 443:
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            threading.Thread(target=server.serve_forever, daemon=True).start()


def repository():
    bare, work = os.path.join(www, "repo.git"), os.path.join(place, "work")
    alone = dict(env={"PATH": os.environ["PATH"], "HOME": place, "GIT_CONFIG_NOSYSTEM": "1"})
    quietly("git", "init", "-q", "-b", "main", work, **alone)
    with open(os.path.join(work, "file"), "w") as file:
        file.write("from-git\n")
    author = ["-c", "user.name=lab", "-c", "user.email=lab@lab.test", "-c", "commit.gpgsign=false"]
    quietly("git", "-C", work, "add", "file", **alone)
    quietly("git", "-C", work, *author, "commit", "-qm", "one", **alone)
    quietly("git", "clone", "-q", "--bare", work, bare, **alone)
    quietly("git", "-C", bare, "update-server-info", **alone)
    quietly("chown", "-R", f"{owner}:{owner}", bare)


def git():
    daemon("git", "-c", "safe.directory=*", "daemon", "--export-all", f"--base-path={www}", f"--listen={ORIGIN}", "--port=9418", "--reuseaddr")
    wait_for(9418)


def sshd():
    directory = os.path.join(place, "ssh")
    os.mkdir(directory)
    for key in ("host", "user"):
        quietly("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{directory}/{key}")
    with open(f"{directory}/config", "w") as file:
        file.write(f"ListenAddress {ORIGIN}:2222\nHostKey {directory}/host\nAuthorizedKeysFile {directory}/user.pub\n"
                   f"PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n")
    quietly("chown", "-R", f"{owner}:{owner}", directory)
    daemon("setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups", "/usr/sbin/sshd", "-D", "-e", "-f", f"{directory}/config")
    wait_for(2222)


def http2():
    program = """const http2=require('http2'),fs=require('fs'),place=process.argv[1];
const answer=(stream,headers)=>{let body='';stream.on('error',()=>{});stream.on('data',d=>body+=d);stream.on('end',()=>{if(stream.destroyed)return;stream.respond({':status':200,'content-type':'text/plain'});stream.end('http2 '+headers[':authority']+' '+body+'\\n')})};
const plain=http2.createServer();plain.on('stream',answer);plain.on('sessionError',()=>{});plain.listen(8080,process.argv[2]);
const tls=http2.createSecureServer({key:fs.readFileSync(place+'/leaf.key'),cert:fs.readFileSync(place+'/leaf.pem')});tls.on('stream',answer);tls.on('sessionError',()=>{});tls.listen(8443,process.argv[2]);"""
    daemon("node", "-e", program, place, ORIGIN)
    wait_for(8080)
    wait_for(8443)


def grpc():
    program = """import sys,time,grpc
from concurrent import futures
class Any(grpc.GenericRpcHandler):
    def service(self, call): return grpc.unary_unary_rpc_method_handler(lambda request, context: b'grpc '+request)
server=grpc.server(futures.ThreadPoolExecutor(2)); server.add_generic_rpc_handlers((Any(),))
server.add_insecure_port(sys.argv[2]+':50051')
read=lambda name: open(sys.argv[1]+'/leaf.'+name,'rb').read()
server.add_secure_port(sys.argv[2]+':50052', grpc.ssl_server_credentials([(read('key'),read('pem'))]))
server.start(); time.sleep(10**6)"""
    daemon("/usr/bin/python3", "-c", program, place, ORIGIN)
    wait_for(50051)
    wait_for(50052)


def postgres():
    import glob
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
    data = os.path.join(place, "data")
    os.mkdir(data)
    for name in ("leaf.pem", "leaf.key"):
        quietly("cp", os.path.join(place, name), data + "." + name)
    quietly("chown", "65534:65534", data, data + ".leaf.pem", data + ".leaf.key")
    quietly("chmod", "600", data + ".leaf.key")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    quietly(*nobody, f"{programs}/initdb", "--no-sync", "--auth=trust", "--username=skep", "-D", data, cwd="/")
    with open(os.path.join(data, "pg_hba.conf"), "a") as file:
        file.write("host all all 0.0.0.0/0 trust\n")
    settings = [f"listen_addresses={ORIGIN}", "fsync=off", "shared_buffers=8MB", "ssl=on", f"ssl_cert_file={data}.leaf.pem",
                f"ssl_key_file={data}.leaf.key", f"unix_socket_directories="]
    daemon(*nobody, f"{programs}/postgres", "-D", data, *(word for setting in settings for word in ("-c", setting)), cwd="/")
    for _ in range(1500):
        if subprocess.run([f"{programs}/pg_isready", "-q", "-h", ORIGIN, "-U", "skep", "-d", "postgres"]).returncode == 0:
            return
        time.sleep(0.02)
    sys.exit("PostgreSQL did not start: " + open(os.path.join(place, "daemons.log")).read())


def wait_for(port):
    for _ in range(1500):
        try:
            return socket.create_connection((ORIGIN, port)).close()
        except OSError:
            time.sleep(0.01)
    sys.exit(f"nobody listens on {port}: " + open(os.path.join(place, "daemons.log")).read())


def main():
    os.makedirs(www)
    network()
    names()
    certificates()
    web()
    for service in services:
        {"repository": repository, "git": git, "sshd": sshd, "http2": http2, "grpc": grpc, "postgres": postgres}[service]()
    capture()
    print("ready", flush=True)
    try:
        for _ in sys.stdin:
            print(json.dumps(heard), flush=True)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


main()
