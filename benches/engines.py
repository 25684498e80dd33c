"""Container engines as peers: an image with nothing but a static `true`, a Docker engine of the benchmark's own."""

import os
import shutil
import subprocess
import time

from measure import Missing

IMAGE = "skep-bench-true"


def root_directory(bench):
    """A root with a static `true` and nothing else."""
    root = os.path.join(bench.scratch, "static")
    if os.path.exists(os.path.join(root, "bin", "true")):
        return root
    bench.program("gcc", "gcc")
    os.makedirs(os.path.join(root, "bin"), exist_ok=True)
    source = os.path.join(bench.scratch, "true.c")
    with open(source, "w") as handle:
        handle.write("int main(void) { return 0; }\n")
    bench.start(["gcc", "-static", "-O2", "-o", os.path.join(root, "bin", "true"), source], bench.scratch)
    return root


def archive(bench):
    """The same as an archive that engines import."""
    path = os.path.join(bench.scratch, "image.tar")
    if not os.path.exists(path):
        bench.start(["tar", "-C", root_directory(bench), "-cf", path, "."], bench.scratch)
    return path


def runc_run(bench):
    """`runc run` of that root, as `runc spec` describes it."""
    bench.program("runc", "runc")
    folder = bench.folder("bundle")
    shutil.copytree(root_directory(bench), os.path.join(folder, "rootfs"))
    bench.start(["runc", "spec"], folder)
    config = os.path.join(folder, "config.json")
    with open(config) as handle:
        text = handle.read()
    with open(config, "w") as handle:
        handle.write(text.replace('"terminal": true', '"terminal": false').replace('"sh"', '"/bin/true"'))
    state = os.path.join(bench.scratch, "runc")
    return lambda: ["runc", "--root", state, "run", bench.unique()], folder


def podman_run(bench):
    """`podman run` with storage in the scratch area.

    Podman asks for more open files and processes than a root without CAP_SYS_RESOURCE may have, so it is asked for few.
    crun refuses hosts with both versions of cgroups, so runc is used where it is installed."""
    bench.program("podman", "podman")
    own = ["podman", "--root", os.path.join(bench.scratch, "podman"), "--runroot", os.path.join(bench.scratch, "podman-run"),
           "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs"]
    runc = shutil.which("runc")
    own += ["--runtime", runc] if runc else []
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    # Without root its files belong to ids that only podman itself may act for.
    bench.at_end(lambda: subprocess.run([*own, "rmi", "--all", "--force"], env=bench.environment, capture_output=True))
    bench.start([*own, "import", archive(bench), IMAGE], bench.scratch)
    return [*own, "run", "--rm", "--network", "none", *limits, IMAGE, "/bin/true"], bench.scratch


def start_docker(bench):
    """A Docker engine without networks on a private socket, until the end of the group. `docker` and skep find it."""
    for name, package in (("docker", "docker.io"), ("dockerd", "docker.io")):
        bench.program(name, package)
    if os.geteuid() != 0:
        raise Missing("a private Docker engine is started by root only")
    folder = bench.folder(bench.unique())
    at = lambda name: os.path.join(folder, name)
    host = f"unix://{at('sock')}"
    # It ends with this process, however that ends.
    command = ["setpriv", "--pdeathsig", "TERM", "dockerd", "--host", host, "--data-root", at("data"), "--exec-root", at("exec"),
               "--pidfile", at("pid"), "--iptables=false", "--ip6tables=false", "--bridge=none",
               "--storage-driver=overlay2", "--shutdown-timeout=2"]
    with open(at("log"), "w") as log:
        engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    bench.at_end(stop_docker, bench, engine)
    bench.environment["DOCKER_HOST"] = host
    deadline = time.monotonic() + 60
    while subprocess.run(["docker", "version"], env=bench.environment, capture_output=True).returncode != 0:
        if engine.poll() is not None or time.monotonic() > deadline:
            with open(at("log")) as log:
                last = (log.read().strip().splitlines() or ["no message"])[-1]
            raise Missing(f"dockerd does not start here: {last[:160]}")
        time.sleep(0.1)


def stop_docker(bench, engine):
    bench.environment.pop("DOCKER_HOST", None)
    engine.terminate()
    try:
        engine.wait(30)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()


def docker_run(bench):
    """`docker run` on an engine of its own."""
    start_docker(bench)
    bench.start(["docker", "import", archive(bench), IMAGE], bench.scratch)
    return ["docker", "run", "--rm", "--network", "none", IMAGE, "/bin/true"], bench.scratch
