#!/usr/bin/python3
"""Measures skep against what people would use instead, side by side in one interleaved run.

    benches/run.py [--skep PATH] [--rounds N] [--only GROUP…] [--huge] [--idle N] [--burst N] [--write] [--check]

Not a test: times on a shared machine say little, ratios of interleaved medians say more. Each round runs every
command of a group once, in turn, so that a busy minute hits all of them; the first round is thrown away. The tables give the
median, the least and the spread (10th to 90th percentile), and for a ratio also the spread of the rounds' own ratios.

--huge    also a project of 300,000 files
--write   also writes docs/bench/latest.md and the charts beside it
--check   exits 1 if a figure misses its aim

A peer that is missing is named with its package, a command that this skep does not have is named with its error; neither
stops the rest. Only the standard library is used.
"""

import argparse
import os
import shutil
import sys
import tempfile

import report
from groups import GROUPS
from measure import Bench, Missing, measure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run_groups(bench, wanted):
    done, problems = [], []
    for name in wanted:
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        try:
            cases, ratios, rounds = GROUPS[name](bench)
        except Missing as error:
            problems.append(f"{name}: {error}")
            continue
        measure(cases, rounds)
        done.append((name, cases, ratios))
    return done, problems


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skep", default=os.path.join(ROOT, "target", "release", "skep"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--idle", type=int, default=50, help="how many idle sandboxes are weighed")
    parser.add_argument("--burst", type=int, default=100, help="how many start at once")
    # Not /tmp: it is often in memory, where fsync costs nothing.
    parser.add_argument("--scratch", default="/var/tmp", help="where the trees and the state directory are made")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def write(text, groups):
    folder = os.path.join(ROOT, "docs", "bench")
    os.makedirs(folder, exist_ok=True)
    lines = ["# Benchmark", "", text]
    for name, cases, _ in groups:
        drawn = report.chart(cases, f"{name}: milliseconds, less is better")
        if drawn and name in ("start", "size"):
            with open(os.path.join(folder, f"{name}.svg"), "w") as handle:
                handle.write(drawn)
            lines.append(f"![{name}]({name}.svg)")
    with open(os.path.join(folder, "latest.md"), "w") as handle:
        handle.write("\n".join(lines).rstrip() + "\n")


def main():
    options = arguments()
    skep = os.path.abspath(options.skep)
    if not os.access(skep, os.X_OK):
        sys.exit(f"bench: there is no program `{skep}`; `make bench` builds it")
    scratch = tempfile.mkdtemp(prefix="skep-bench.", dir=options.scratch)
    bench = Bench(skep, scratch, options)
    try:
        groups, problems = run_groups(bench, options.only)
    finally:
        bench.clean()
        shutil.rmtree(scratch, ignore_errors=True)
    command = " ".join(["benches/run.py", *[word for word in sys.argv[1:] if not word.startswith(("--skep", "/"))]])
    text, met = report.markdown(groups, problems, command)
    print(text, end="")
    if options.write:
        write(text, groups)
    sys.exit(0 if met or not options.check else 1)


if __name__ == "__main__":
    main()
