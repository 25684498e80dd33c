"""The group about an allowed connection through skep's egress against direct loopback."""

import socket
import subprocess
import threading

from measure import Case, Group, Missing, Ratio, together

MEGABYTES = 256
# Runs outside and inside: megabytes per second, microseconds of a round trip, microseconds of a new connection.
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
        try:
            connection, _ = listener.accept()
        except OSError:
            return
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


def side(bench, name, command, project):
    """Throughput, round trip and new connection of one side, taken by one client."""

    def run():
        done = subprocess.run(command, cwd=project, env=bench.environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Missing((done.stderr.strip().splitlines() or ["no message"])[-1][:160])
        return [float(word) for word in done.stdout.split()]

    return together(
        run,
        Case(f"throughput, {name}", run, unit="MB/s", more=True, before=bench.settle),
        Case(f"round trip, {name}", run, unit="µs"),
        Case(f"new connection, {name}", run, unit="µs"),
    )


def egress_group(bench):
    """A connection that a rule allows, through the egress process, against the same on the host's loopback: 256 MiB from a
    server, 500 round trips of one byte on an open connection, 50 new connections with a byte there and back (medians of
    these). And what a way out costs at the start of a run."""
    project = bench.tree("egress", 10)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    bench.at_end(listener.close)
    port = str(listener.getsockname()[1])
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    rule = ["--allow", f"tcp://127.0.0.1:{port}"]
    bench.start([bench.skep, "create", "out", *rule], project)
    client = ["/usr/bin/python3", "-c", CLIENT, port, str(MEGABYTES)]
    direct = side(bench, "direct", client, project)
    through = side(bench, "through skep", [bench.skep, "exec", "out", "--", *client], project)
    closed = bench.command("`skep run --net none -- true`", [bench.skep, "run", "--net", "none", "--", "true"], project)
    allowed = bench.command("`skep run --allow … -- true`", [bench.skep, "run", *rule, "--", "true"], project)
    names = [(one.name, other.name) for one, other in zip(direct, through)]
    (rate, rate_through), (trip, trip_through), (fresh, fresh_through) = names
    ratios = [
        Ratio("throughput ÷ direct", lambda m: m[rate_through] / m[rate], 0.5, at_least=True),
        Ratio("a round trip more", lambda m: m[trip_through] - m[trip], 1000, "µs"),
        Ratio("a new connection more", lambda m: m[fresh_through] - m[fresh], 1000, "µs"),
        Ratio("run with a way out − without", lambda m: m[allowed.name] - m[closed.name], unit="ms"),
    ]
    return Group([*direct, *through, closed, allowed], ratios, max(5, bench.rounds // 4))
