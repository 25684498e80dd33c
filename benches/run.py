#!/usr/bin/python3
"""Measures skep against what people would use instead, side by side in one interleaved run.

    benches/run.py [--skep PATH] [--rounds N] [--only GROUP…] [--no-huge] [--idle N] [--burst N] [--write] [--check]

Not a test: times on a shared machine say little, ratios of interleaved medians say more. Each round runs every case of a
group once, in turn, so that a busy minute hits all of them; the first round is thrown away. The tables give the median,
the best and the spread (10th to 90th percentile), and for a ratio also the spread of the rounds' own ratios. Groups that
take long have fewer rounds; what takes seconds has three.

--no-huge   without the project of 300,000 files
--write     also writes docs/bench/latest.md and the charts beside it
--check     exits 1 if a figure misses its aim

A peer that is missing is named with its package, a command that this skep does not have is named with its error; neither
stops the rest. Only the standard library is used.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

import report
from bench import Bench
from chart import chart
from groups import GROUPS
from measure import measure, told

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run_groups(bench, wanted):
    done, problems = [], []
    for name in wanted:
        began = time.monotonic()
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        try:
            group = GROUPS[name](bench)
            measure(group)
            done.append((name, " ".join(GROUPS[name].__doc__.split()), group, time.monotonic() - began))
        except Exception as error:  # the other groups are still worth having
            problems.append(f"{name}: {told(error)}")
        finally:
            bench.end_group()
    return done, problems


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skep", default=os.path.join(ROOT, "target", "release", "skep"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP",
                        help=f"some of: {', '.join(GROUPS)}")
    parser.add_argument("--huge", action=argparse.BooleanOptionalAction, default=True, help="a project of 300,000 files too")
    parser.add_argument("--idle", type=int, default=1000, help="how many idle sandboxes are weighed")
    parser.add_argument("--burst", type=int, default=100, help="how many start at once")
    # Not /tmp: it is often in memory, where fsync costs nothing.
    parser.add_argument("--scratch", default="/var/tmp", help="where the trees and the state directory are made")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def heading(options, skep, seconds):
    """The command, the program that was measured, and the machine."""
    words = [word for word in sys.argv[1:] if word != "--skep" and word != options.skep and not word.startswith("--skep=")]
    version = subprocess.run([skep, "version"], capture_output=True, text=True).stdout.split("\n")[0].strip()
    commit = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%h of %cs"], capture_output=True, text=True).stdout
    return [
        f"Made by `{' '.join(['benches/run.py', *words])}`, as `make bench ARGS='{' '.join(words)}'` starts it, in "
        f"{seconds / 60:.0f} minutes, {time.strftime('%Y-%m-%d', time.gmtime())}, with `{version}`"
        + (f", sources at {commit.strip()}" if commit else "") + ".",
        "",
        f"Machine: {report.machine()}; {report.filesystem(options.scratch)}; load {os.getloadavg()[0]:.1f} at the end.",
    ]


def write(groups, problems, head):
    folder = os.path.join(ROOT, "docs", "bench")
    os.makedirs(folder, exist_ok=True)
    drawn = {
        name: chart(group.cases, f"{name}: milliseconds, less is better") for name, _, group, _ in groups if group.chart
    }
    drawn = {name: picture for name, picture in drawn.items() if picture}
    for name, picture in drawn.items():
        with open(os.path.join(folder, f"{name}.svg"), "w") as handle:
            handle.write(picture)
    text, _ = report.markdown(groups, problems, ["# Benchmark", "", *head], drawn)
    with open(os.path.join(folder, "latest.md"), "w") as handle:
        handle.write(text.rstrip() + "\n")


def main():
    options = arguments()
    skep = os.path.abspath(options.skep)
    if not os.access(skep, os.X_OK):
        sys.exit(f"bench: there is no program `{skep}`; `make bench` builds it")
    began = time.monotonic()
    scratch = tempfile.mkdtemp(prefix="skep-bench.", dir=options.scratch)
    # Directories in it are spread over the disk, as those below /home and in the state directory are.
    subprocess.run(["chattr", "+T", scratch], capture_output=True)
    bench = Bench(skep, scratch, options)
    try:
        groups, problems = run_groups(bench, options.only)
    finally:
        bench.wipe()
    head = heading(options, skep, time.monotonic() - began)
    text, met = report.markdown(groups, problems, head)
    print(text, end="")
    if options.write:
        write(groups, problems, head)
    sys.exit(0 if met or not options.check else 1)


if __name__ == "__main__":
    main()
