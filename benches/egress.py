#!/usr/bin/python3
"""Measures an allowed connection through skep's egress against direct loopback.

    benches/egress.py [--skep PATH] [--megabytes N] [--rounds N] [--check]

A server on this host's loopback sends bytes (throughput) or answers one byte with one byte (latency). The same client
runs outside, and inside a sandbox that may reach that port. Rounds alternate, medians are printed, and what the network
costs at the start of a sandbox. Only the standard library is used.

--check   exits 1 if throughput is below half of direct, or a round trip or a new connection costs more than a
          millisecond more
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLIENT = r"""
import socket,sys,time
port,megabytes=int(sys.argv[1]),int(sys.argv[2])
def connect(kind):
    s=socket.create_connection(('127.0.0.1',port)); s.setsockopt(socket.IPPROTO_TCP,socket.TCP_NODELAY,1); s.sendall(kind); return s
s=connect(b'T'+megabytes.to_bytes(4,'big')); left=megabytes<<20; t=time.perf_counter(); b=bytearray(1<<18)
while left: left-=s.recv_into(b)
print((megabytes<<20)/(time.perf_counter()-t)/1e6)
s=connect(b'L'+b'\0'*4); times=[]
for _ in range(500):
    t=time.perf_counter(); s.sendall(b'x'); s.recv(1); times.append(time.perf_counter()-t)
times.sort(); print(times[250]*1e6)
opened=[]
for _ in range(50):
    t=time.perf_counter(); s=connect(b'L'+b'\0'*4); s.sendall(b'x'); s.recv(1); opened.append(time.perf_counter()-t); s.close()
opened.sort(); print(opened[25]*1e6)
"""


def serve(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = b""
    while len(head) < 5:
        more = connection.recv(5 - len(head))
        if not more:
            return
        head += more
    try:
        if head[:1] == b"T":
            block = bytes(1 << 20)
            for _ in range(int.from_bytes(head[1:], "big")):
                connection.sendall(block)
        else:
            while byte := connection.recv(1):
                connection.sendall(byte)
    except OSError:
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--skep", default=os.path.join(ROOT, "target/release/skep"))
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = str(listener.getsockname()[1])
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    with tempfile.TemporaryDirectory() as scratch:
        project = os.path.join(scratch, "project")
        os.mkdir(project)
        environment = {**os.environ, "SKEP_HOME": os.path.join(scratch, "state")}
        client = [sys.executable if sys.executable.startswith("/usr") else "/usr/bin/python3", "-c", CLIENT, port, str(options.megabytes)]
        skep = lambda *words: subprocess.run([options.skep, *words], cwd=project, env=environment, check=True, capture_output=True, text=True).stdout
        rule = "tcp://127.0.0.1:" + port
        skep("create", "bench", "--allow", rule)
        rows = {"direct": [], "through skep": []}
        for _ in range(options.rounds):
            direct = subprocess.run(client, check=True, capture_output=True, text=True).stdout
            inside = skep("exec", "bench", "--", *client)
            rows["direct"].append([float(word) for word in direct.split()])
            rows["through skep"].append([float(word) for word in inside.split()])
        starts = {"--net none": [], "--allow": []}
        for _ in range(options.rounds * 2):
            for name, flags in (("--net none", []), ("--allow", ["--allow", rule])):
                before = time.perf_counter()
                skep("run", *flags, "--", "true")
                starts[name].append((time.perf_counter() - before) * 1e3)
        skep("rm", "--discard", "bench")
    medians = {name: [statistics.median(column) for column in zip(*samples)] for name, samples in rows.items()}
    print(f"{'':14} {'MB/s':>8} {'round trip µs':>14} {'new connection µs':>18}")
    for name, (rate, trip, fresh) in medians.items():
        print(f"{name:14} {rate:8.0f} {trip:14.0f} {fresh:18.0f}")
    ratio = medians["through skep"][0] / medians["direct"][0]
    more = medians["through skep"][1] - medians["direct"][1]
    fresh = medians["through skep"][2] - medians["direct"][2]
    print(f"throughput {ratio:.2f} of direct (aim 0.5), a round trip {more:+.0f} µs (aim +1000), a new connection {fresh:+.0f} µs (aim +1000)")
    for name, samples in starts.items():
        print(f"run {name:11} {statistics.median(samples):6.1f} ms")
    if options.check and (ratio < 0.5 or more > 1000 or fresh > 1000):
        sys.exit(1)


if __name__ == "__main__":
    main()
