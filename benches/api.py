"""The group about a private `skep serve`, asked over its unix socket."""

import concurrent.futures
import http.client
import json
import os
import signal
import socket
import subprocess
import time

from load import weight_of_each
from measure import Case, Group, Missing, Ratio, together

WAITING, CLIENTS, SECONDS = 10, 8, 2


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(120)
        self.sock.connect(self.path)


def ask(connection, method, path, body=None):
    headers = {"Content-Type": "application/json"} if body is not None else {}
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    response = connection.getresponse()
    text = response.read()
    if response.status >= 300:
        raise Missing(f"{method} {path}: {response.status} {text[:160]!r}")
    return json.loads(text) if text else None


def life(path, project, ahead=False):
    """Create, exec, changes, delete: milliseconds until the sandbox was there, its first exec had ended, all was over."""
    connection = Connection(path)
    began = time.perf_counter()
    sandbox = ask(connection, "POST", "/v1/sandboxes", {"project": project})
    made = time.perf_counter()
    name = sandbox["id"]
    if ahead != ("skep.pool.claimed" in sandbox["labels"]):
        raise Missing(f"a sandbox was {'not ' if ahead else ''}made ahead")
    end = ask(connection, "POST", f"/v1/sandboxes/{name}/execs", {"command": ["true"], "wait": True})
    done = time.perf_counter()
    if end["exit_code"] != 0:
        raise Missing(f"exec: {end}")
    ask(connection, "GET", f"/v1/sandboxes/{name}/changes")
    ask(connection, "DELETE", f"/v1/sandboxes/{name}")
    return [(moment - began) * 1e3 for moment in (made, done, time.perf_counter())]


class Server:
    """`skep serve` with a state directory of its own, and a project for which sandboxes are made ahead."""

    def __init__(self, bench):
        home, settings = bench.folder("api-state"), bench.folder("api-settings")
        self.project, self.ahead = bench.tree("api", 10), bench.tree("api-ahead", 10)
        self.path, self.settings = os.path.join(home, "skep.sock"), os.path.join(settings, "skep", "config.toml")
        os.chmod(home, 0o700)
        os.mkdir(os.path.dirname(self.settings))
        open(self.settings, "w").close()
        log = os.path.join(bench.scratch, "api-log")
        environment = bench.environment | {"XDG_CONFIG_HOME": settings, "SKEP_HOME": home}
        with open(log, "w") as handle:
            self.process = subprocess.Popen([bench.skep, "serve"], stderr=handle, cwd="/", env=environment)
        bench.at_end(self.stop)
        deadline = time.monotonic() + 30
        while not os.path.exists(self.path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(log) as handle:
                    raise Missing(f"the server does not start: {handle.read()[-160:]}")
            time.sleep(0.05)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def fill(self):
        """Has sandboxes made ahead, and waits for them."""
        with open(self.settings, "w") as file:
            file.write(f'[pools.ahead]\nproject = "{self.ahead}"\nsize = {WAITING}\n')
        self.await_waiting(WAITING)

    def drain(self):
        """Takes the pool out of the settings, so that the next case has the machine to itself."""
        os.truncate(self.settings, 0)
        self.await_waiting(0)

    def await_waiting(self, wanted):
        deadline = time.monotonic() + 60
        while self.waiting() != wanted:
            if time.monotonic() > deadline:
                raise Missing(f"the pool does not come to {wanted}")
            time.sleep(0.1)

    def waiting(self):
        pools = ask(Connection(self.path), "GET", "/v1/stats")["pools"]
        return pools["ahead"]["waiting"] if "ahead" in pools else 0


def burst(server, width):
    """That many lives at once: the 99th percentile of each part."""
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        lives = list(pool.map(lambda _: life(server.path, server.project), range(width)))
    return [sorted(part)[round((width - 1) * 0.99)] for part in zip(*lives)][1:]


def claims(server):
    """All that wait are claimed, one after the other."""
    lives = [life(server.path, server.ahead, ahead=True) for _ in range(WAITING)]
    return [list(part) for part in zip(*lives)][:2]


def rate(path):
    """Answers per second to the cheapest question that asks the engine, on connections that stay open. The client does as
    little as it can: it shares the processors with the server."""
    question = b"GET /v1/sandboxes?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    deadline = time.monotonic() + SECONDS

    def client(_):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(path)
            line.settimeout(30)
            count = 0
            while time.monotonic() < deadline:
                line.sendall(question)
                answer = line.recv(65536)
                while b"\r\n\r\n" not in answer:
                    answer += line.recv(65536)
                head, body = answer.split(b"\r\n\r\n", 1)
                if not head.startswith(b"HTTP/1.1 200"):
                    raise Missing(f"the server answered {head[:60]!r}")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                while len(body) < length:
                    body += line.recv(65536)
                count += 1
            return count

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(client, range(CLIENTS))) / SECONDS


def idle(bench, server, count):
    """Has that many sandboxes made and used once, weighs them, and takes them away again."""

    def make(_):
        connection = Connection(server.path)
        name = ask(connection, "POST", "/v1/sandboxes", {"project": server.project})["id"]
        ask(connection, "POST", f"/v1/sandboxes/{name}/execs", {"command": ["true"], "wait": True})
        return name

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        names = list(pool.map(make, range(count)))
        weight = weight_of_each(bench, count)
        list(pool.map(lambda name: ask(Connection(server.path), "DELETE", f"/v1/sandboxes/{name}"), names))
    return weight


def api_group(bench):
    """A private `skep serve` asked over its unix socket, with the clock of the client: from the request for a sandbox to the
    answer of its first exec (`true`, waited for); a hundred whole lives at once (create, exec, changes, delete), of which
    the 99th percentile is shown and none may fail; sandboxes made ahead (`[pools]`) that are claimed; answers per second to
    eight clients that list one sandbox; and the memory of idle sandboxes (PSS of keeper and init)
    that a server has made, after an exec."""
    server, width = Server(bench), bench.width
    single = together(
        lambda: life(server.path, server.project),
        Case("API: create", None, before=bench.settle),
        Case("API: create → first exec", None),
        Case("API: create → exec → changes → delete", None),
    )
    crowd = together(
        lambda: burst(server, width),
        Case(f"API: create → first exec, 99th of {width} at once", None, before=bench.settle, most=5),
        Case(f"API: the whole life, 99th of {width} at once", None, most=5),
    )
    claimed = together(
        lambda: claims(server),
        Case("API: claim of one made ahead", None, before=server.fill, most=3),
        Case("API: claim → first exec", None, before=server.drain, most=3),
    )
    answers = Case(f"API: requests of {CLIENTS} clients", lambda: rate(server.path), unit="/s", more=True, most=5)
    many = max(10, bench.idle // 5)
    weight = Case(f"API: each of {many} idle sandboxes, after an exec", lambda: idle(bench, server, many), unit="KiB", most=1)
    ratios = [
        Ratio("create → first exec", lambda m: m[single[1].name], 10, "ms"),
        Ratio(f"99th of {width} at once, create → first exec", lambda m: m[crowd[0].name], 1000, "ms"),
        Ratio("pool claim", lambda m: m[claimed[0].name], 5, "ms"),
        Ratio("an idle sandbox after an exec", lambda m: m[weight.name] * 1024 / 1e6, 1.5, "MB"),
    ]
    return Group([*single, *crowd, *claimed, answers, weight], ratios, bench.rounds)
