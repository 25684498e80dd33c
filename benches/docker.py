#!/usr/bin/python3
"""What the docker provider costs beside the engine's own command line.

    DOCKER_HOST=unix:///path benches/docker.py [--skep PATH] [--rounds N]

A sandbox of its own for `true` against `docker run --rm`, and `true` in a sandbox that stands against `docker exec`. The
engine's containers have the same limits and the same system: the host's directories, read-only. Rounds are interleaved,
the first is thrown away, medians and the spread are shown. `ci/provision providers` starts an engine.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYSTEM = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"]
NAME = "skep-bench-standing"


def timed(command, **options):
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
    return time.monotonic() - start


def plain(image):
    """The options of a container like the provider's."""
    words = ["--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--tmpfs", "/tmp", "--memory", "2g", "--pids-limit", "512"]
    for path in SYSTEM:
        if os.path.isdir(path) and not os.path.islink(path):
            words += ["--volume", f"{path}:{path}:ro"]
    return [*words, image]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--skep", default=os.path.join(ROOT, "target/release/skep"))
    arguments.add_argument("--rounds", type=int, default=11)
    options = arguments.parse_args()
    if shutil.which("docker") is None or "DOCKER_HOST" not in os.environ:
        sys.exit("needs `docker` and DOCKER_HOST: `ci/provision providers`, then `. ci/provision.env`")
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as place:
        project = os.path.join(place, "project")
        os.mkdir(project)
        with open(os.path.join(project, "file"), "w", encoding="utf-8") as file:
            file.write("one\n")
        where = {"cwd": project, "env": dict(os.environ, SKEP_HOME=os.path.join(place, "state"))}
        skep = [options.skep, "--quiet"]
        timed([*skep, "create", "bench", "--provider", "docker"], **where)
        listed = subprocess.run(["docker", "images", "--quiet", "skep/host-view"], capture_output=True, text=True, check=True)
        image = listed.stdout.split()[0]
        timed(["docker", "run", "--detach", "--name", NAME, *plain(image), "/bin/sleep", "3600"])
        cases = {
            "skep run --provider docker -- true": [*skep, "run", "--provider", "docker", "--", "true"],
            "docker run --rm … true": ["docker", "run", "--rm", *plain(image), "/bin/true"],
            "skep exec (docker) -- true": [*skep, "exec", "bench", "--", "true"],
            "docker exec … true": ["docker", "exec", NAME, "/bin/true"],
        }
        taken = {name: [] for name in cases}
        try:
            for _ in range(options.rounds + 1):
                for name, command in cases.items():
                    taken[name].append(timed(command, **where) * 1000)
        finally:
            subprocess.run(["docker", "rm", "--force", NAME], stdout=subprocess.DEVNULL, check=False)
            subprocess.run([*skep, "rm", "--discard", "bench"], check=False, **where)
        for name, times in taken.items():
            times = sorted(times[1:])
            print(f"{name:40} {statistics.median(times):7.1f} ms   ({times[0]:.1f} to {times[-1]:.1f})")


main()
