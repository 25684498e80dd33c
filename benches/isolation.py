#!/usr/bin/python3
"""What isolation costs: a compile inside a sandbox against the same outside, and a start against bare namespaces.

    benches/isolation.py [--skep PATH] [--rounds N] [--check]

Rounds are interleaved, the first is thrown away, medians are compared. The compile is timed by itself (in one exec of a
sandbox that stands), the start is `skep run -- true` against `bwrap` with the same namespaces and no filter, no fence
and no limits: skep has no switch to take its layers off one by one. --check exits 1 if the compile misses its aim.
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
FILES = 24
AIM = 1.03
SOURCE = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int work_%d(int x) { char text[64]; snprintf(text, sizeof text, "%%d", x); return (int)strlen(text) + %d; }
"""
BUILD = f"for i in $(seq {FILES}); do gcc -O1 -c f$i.c -o f$i.o; done; rm -f *.o"
BWRAP = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]


def timed(command, **options):
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    return time.monotonic() - start


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--skep", default=os.path.join(ROOT, "target/release/skep"))
    arguments.add_argument("--rounds", type=int, default=11)
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    missing = [tool for tool in ("gcc", "bwrap") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"missing: {', '.join(missing)}; `ci/provision bench` installs them")
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as place:
        project = os.path.join(place, "project")
        os.mkdir(project)
        for number in range(1, FILES + 1):
            with open(os.path.join(project, f"f{number}.c"), "w", encoding="utf-8") as file:
                file.write(SOURCE % (number, number))
        environment = dict(os.environ, SKEP_HOME=os.path.join(place, "state"))
        skep = [options.skep, "--quiet"]
        where = {"cwd": project, "env": environment}
        timed([*skep, "create", "bench"], **where)
        cases = {
            "compile outside": ["sh", "-c", BUILD],
            "compile inside": [*skep, "exec", "bench", "--", "sh", "-c", BUILD],
            "exec of nothing": [*skep, "exec", "bench", "--", "true"],
            "start, bare namespaces (bwrap)": [*BWRAP, "true"],
            "start, all layers (skep run)": [*skep, "run", "--", "true"],
        }
        samples = {name: [] for name in cases}
        for _ in range(options.rounds + 1):
            for name, command in cases.items():
                samples[name].append(timed(command, **where))
        timed([*skep, "rm", "--discard", "bench"], **where)
    medians = {name: statistics.median(times[1:]) for name, times in samples.items()}
    for name, median in medians.items():
        print(f"{name:<34} {median * 1000:9.1f} ms")
    inside = medians["compile inside"] - medians["exec of nothing"]
    ratio = inside / medians["compile outside"]
    start = medians["start, all layers (skep run)"] / medians["start, bare namespaces (bwrap)"]
    print(f"compile inside / outside           {ratio:9.3f}    aim {AIM}")
    print(f"start, all layers / bare           {start:9.2f}")
    if options.check and ratio > AIM:
        sys.exit(1)


if __name__ == "__main__":
    main()
