#!/usr/bin/python3
"""Load on a private `skep serve`: create → first exec one after the other, a burst of whole lives (create, exec, diff,
delete) at once, requests per second, memory of idle sandboxes, and sandboxes that were made ahead (`[pools]`).

Usage: benches/api.py [--skep PROGRAM] [--count N] [--burst N] [--idle N] [--pool N]

Starts a server in a scratch directory, talks to its unix socket, prints one JSON document, and removes everything.
Times are those of the client: from the request for a sandbox to the answer of its first exec (`true`, waited for).
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time


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
        raise RuntimeError(f"{method} {path}: {response.status} {text[:200]!r}")
    return json.loads(text) if text else None


def once(path, project, keep=False, ahead=False):
    connection = Connection(path)
    began = time.monotonic()
    sandbox = ask(connection, "POST", "/v1/sandboxes", {"project": project})
    made = time.monotonic()
    name = sandbox["id"]
    if ahead != ("skep.pool.claimed" in sandbox["labels"]):
        raise RuntimeError(f"{name} was {'not ' if ahead else ''}made ahead")
    end = ask(connection, "POST", f"/v1/sandboxes/{name}/execs", {"command": ["true"], "wait": True})
    done = time.monotonic()
    if end["exit_code"] != 0:
        raise RuntimeError(f"exec: {end}")
    if not keep:
        ask(connection, "GET", f"/v1/sandboxes/{name}/changes")
        ask(connection, "DELETE", f"/v1/sandboxes/{name}")
    return name, made - began, done - began


def quantile(values, share):
    values = sorted(values)
    return round(values[min(len(values) - 1, int(len(values) * share))] * 1000, 2)


def figures(runs):
    made, done = [run[1] for run in runs], [run[2] for run in runs]
    return {
        "count": len(runs),
        "create_ms": {"p50": quantile(made, 0.5), "p99": quantile(made, 0.99)},
        "create_to_first_exec_ms": {"p50": quantile(done, 0.5), "p99": quantile(done, 0.99)},
    }


def holders(skep):
    """Processes of this program that hold sandboxes: keepers, and process 1 of each."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)") != skep:
                continue
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                words = line.read().split(b"\0")
        except OSError:
            continue
        if b"serve" not in words and not words[0].startswith(b"skep: worker"):
            found.append(pid)
    return found


def proportional_memory(skep):
    """Bytes of these processes, shared pages by share (Pss)."""
    total = 0
    for pid in holders(skep):
        try:
            with open(f"/proc/{pid}/smaps_rollup") as rollup:
                total += sum(int(line.split()[1]) << 10 for line in rollup if line.startswith("Pss:"))
        except OSError:
            continue
    return total


def rate(path, seconds, clients):
    """Answers per second to the cheapest question that asks the engine, on connections that stay open."""
    deadline = time.monotonic() + seconds

    def client(_):
        connection, count = Connection(path), 0
        while time.monotonic() < deadline:
            ask(connection, "GET", "/v1/sandboxes?limit=1")
            count += 1
        return count

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return round(sum(pool.map(client, range(clients))) / seconds, 1)


def waiting(path):
    pools = ask(Connection(path), "GET", "/v1/stats")["pools"]
    return pools["ahead"]["waiting"] if "ahead" in pools else 0


def drain(path, settings):
    """Takes the pool out of the settings, and waits until nothing waits in it."""
    os.truncate(settings, 0)
    deadline = time.monotonic() + 60
    while waiting(path) > 0:
        if time.monotonic() > deadline:
            raise RuntimeError("the pool is not drained")
        time.sleep(0.1)


def claims(path, project, size, rounds):
    """Sandboxes made ahead are claimed one after the other, each time the pool is full again."""
    runs = []
    for _ in range(rounds):
        deadline = time.monotonic() + 60
        while waiting(path) < size:
            if time.monotonic() > deadline:
                raise RuntimeError("the pool is not filled")
            time.sleep(0.1)
        runs += [once(path, project, ahead=True) for _ in range(size)]
    return figures(runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skep", default="target/release/skep")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--burst", type=int, default=100)
    parser.add_argument("--idle", type=int, default=50)
    parser.add_argument("--pool", type=int, default=10, help="how many wait in the pool")
    typed = parser.parse_args()
    skep = os.path.abspath(typed.skep)
    scratch = tempfile.mkdtemp(prefix="skep-bench-")
    # A program of its own, so that other sandboxes of this host are not counted.
    shutil.copy(skep, os.path.join(scratch, "skep"))
    skep = os.path.join(scratch, "skep")
    project, state = os.path.join(scratch, "project"), os.path.join(scratch, "state")
    os.mkdir(project)
    # A project with a pool of its own, so that the others are made the ordinary way.
    ahead, settings = os.path.join(scratch, "ahead"), os.path.join(scratch, "settings")
    os.mkdir(ahead)
    os.makedirs(os.path.join(settings, "skep"))
    with open(os.path.join(settings, "skep", "config.toml"), "w") as file:
        file.write(f'[pools.ahead]\nproject = "{ahead}"\nsize = {typed.pool}\n' if typed.pool else "")
    path = os.path.join(state, "skep.sock")
    with open(os.path.join(scratch, "log"), "w") as log:
        server = subprocess.Popen(
            [skep, "--home", state, "serve"], stderr=log, cwd="/", env=os.environ | {"XDG_CONFIG_HOME": settings}
        )
    try:
        deadline = time.monotonic() + 30
        while not os.path.exists(path):
            if time.monotonic() > deadline:
                raise RuntimeError("the server does not start")
            time.sleep(0.05)
        for _ in range(5):
            once(path, project)
        result = {"load_average": os.getloadavg()[0], "processors": os.cpu_count()}
        result |= {"one_by_one": figures([once(path, project) for _ in range(typed.count)])}
        with concurrent.futures.ThreadPoolExecutor(typed.burst) as pool:
            runs = list(pool.map(lambda _: once(path, project), range(typed.burst)))
        result["burst"] = figures(runs)
        if typed.pool:
            result["made_ahead"] = claims(path, ahead, typed.pool, 3)
            drain(path, os.path.join(settings, "skep", "config.toml"))
        result["requests_per_second"] = rate(path, 3, 8)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            kept = [run[0] for run in pool.map(lambda _: once(path, project, keep=True), range(typed.idle))]
            if kept:
                result["idle"] = {
                    "count": len(kept),
                    "processes": len(holders(skep)),
                    "bytes_each": proportional_memory(skep) // len(kept),
                    "create_to_first_exec_ms_beside_them": figures([once(path, project) for _ in range(10)])[
                        "create_to_first_exec_ms"
                    ],
                }
            list(pool.map(lambda name: ask(Connection(path), "DELETE", f"/v1/sandboxes/{name}"), kept))
        connection = Connection(path)
        left = ask(connection, "GET", "/v1/sandboxes")["items"]
        result["left"] = len(left)
        print(json.dumps(result, indent=2))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
