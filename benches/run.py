#!/usr/bin/python3
"""Measures skep against what people would use instead, side by side in one interleaved run.

    benches/run.py [--skep PATH] [--rounds N] [--only GROUP…] [--write] [--check]

Not a test: times on a shared machine say little, ratios of interleaved medians say more. Each round runs every
command of a group once, in turn, so that a busy minute hits all of them; the first round is thrown away. The table gives the median
and the spread (10th to 90th percentile).

--write   also writes docs/bench/latest.md
--check   exits 1 if a ratio misses its aim

Groups: start, size, diff, approve, layers. A peer that is missing is named with its package, a command that this skep does
not have is named with its error; neither stops the rest. Only the standard library is used.
"""

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILES_BIG, FILES_SMALL = 30_000, 10
APPROVE_FILES, APPROVE_BYTES = 1_000, 4_096


class Missing(Exception):
    """A program or a command is not there; the text says what to do."""


@dataclass
class Case:
    """One thing to time. `before` and `after` run outside the measurement, each round."""

    name: str
    run: Callable[[], None]
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    samples: list = field(default_factory=list)
    problem: str = ""

    def median(self):
        return statistics.median(self.samples)

    def spread(self):
        ordered = sorted(self.samples)
        last = len(ordered) - 1
        return ordered[round(last * 0.1)], ordered[round(last * 0.9)]


@dataclass
class Ratio:
    """A line of the second table: a number made of medians, and what it should be."""

    name: str
    value: Callable[[dict], float]
    aim: float
    unit: str = "×"


def measure(cases, rounds):
    for number in range(rounds + 1):
        for case in cases:
            if case.problem:
                continue
            try:
                case.before()
                start = time.perf_counter()
                case.run()
                taken = (time.perf_counter() - start) * 1e3
                case.after()
            except Missing as error:
                case.problem = str(error)
                case.samples.clear()
                continue
            if number:
                case.samples.append(taken)


class Bench:
    """The scratch area, the state directory, and the ways to start a program."""

    def __init__(self, skep, scratch, rounds):
        self.skep, self.scratch, self.rounds = skep, scratch, rounds
        self.home = os.path.join(scratch, "state")
        os.mkdir(self.home, 0o700)
        # HOME is private too: git must not read the caller's configuration.
        self.environment = {**os.environ, "SKEP_HOME": self.home, "HOME": scratch, "LC_ALL": "C"}
        self.environment.pop("SKEP_HOST", None)
        self.counter = 0

    def start(self, command, cwd):
        done = subprocess.run(
            command, cwd=cwd, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise Missing(f"`{' '.join(command)[:80]}` exited with {done.returncode}: {lines[-1][:160]}")

    def program(self, name, package):
        found = shutil.which(name)
        if not found:
            raise Missing(f"`{name}` is not installed (Debian package `{package}`; `ci/provision bench`)")
        return found

    def unique(self):
        self.counter += 1
        return f"b{self.counter}"

    def tree(self, name, count):
        """A directory with `count` small files, a hundred to a folder."""
        root = os.path.join(self.scratch, name)
        os.mkdir(root)
        for number in range(count):
            folder = os.path.join(root, f"d{number // 100:03}")
            if number % 100 == 0:
                os.mkdir(folder)
            with open(os.path.join(folder, f"f{number % 100:02}.txt"), "w") as handle:
                handle.write(f"file {number}\n" * 4)
        return root

    def command(self, name, command, cwd):
        return Case(name, lambda: self.start(command, cwd))

    def remove(self, name, cwd):
        self.start([self.skep, "rm", "--discard", name], cwd)

    def clean(self):
        """Takes away whatever a group that stopped half-way left running."""
        folder = os.path.join(self.home, "sandboxes")
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            subprocess.run([self.skep, "rm", "--discard", name], env=self.environment, capture_output=True)


def peer(bench, name, program, package, command, cwd):
    """A case that is reported as missing if its program is."""
    case = bench.command(name, command, cwd)
    try:
        bench.program(program, package)
    except Missing as error:
        case.problem = str(error)
    return case


def start_group(bench):
    """run and exec against bwrap and fork+exec."""
    project = bench.tree("start", FILES_SMALL)
    skep = bench.skep
    bench.start([skep, "create", "live"], project)
    bwrap = [
        "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
        "--bind", project, project, "--unshare-all", "--die-with-parent", "--chdir", project, "true",
    ]
    cases = [
        bench.command("fork + exec of `true`", ["/bin/true"], project),
        bench.command("`skep version`", [skep, "version"], project),
        peer(bench, "`bwrap --unshare-all true`", "bwrap", "bubblewrap", bwrap, project),
        bench.command("`skep run -- true`", [skep, "run", "--", "true"], project),
        bench.command("`skep exec -- true`", [skep, "exec", "live", "--", "true"], project),
    ]
    ratios = [
        Ratio("run ÷ bwrap", lambda m: m["`skep run -- true`"] / m["`bwrap --unshare-all true`"], 2.0),
        Ratio(
            "(exec − version) ÷ fork+exec",
            lambda m: (m["`skep exec -- true`"] - m["`skep version`"]) / m["fork + exec of `true`"],
            3.0,
        ),
    ]
    return cases, ratios, bench.rounds


def size_group(bench):
    """create on a small and on a large tree."""
    projects = {
        f"`skep create`, {FILES_SMALL} files": bench.tree("small", FILES_SMALL),
        f"`skep create`, {FILES_BIG:,} files": bench.tree("big", FILES_BIG),
    }
    cases = []
    for name, project in projects.items():
        state = {}

        def before(state=state):
            state["name"] = bench.unique()

        def run(state=state, project=project):
            bench.start([bench.skep, "create", state["name"]], project)

        def after(state=state, project=project):
            bench.remove(state["name"], project)

        cases.append(Case(name, run, before, after))
    small, big = projects
    return cases, [Ratio("create on big ÷ on small", lambda m: m[big] / m[small], 1.2)], bench.rounds


def diff_group(bench):
    """Ten changes in a large repository, against git status of the same ten changes."""
    project = os.path.join(bench.scratch, "big")
    if not os.path.isdir(project):
        bench.tree("big", FILES_BIG)
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    change = "for i in 0 1 2 3 4 5 6 7 8 9; do echo changed >> d00$i/f0$i.txt; done"
    peer_tree = os.path.join(bench.scratch, "big-git")
    status = peer(bench, "`git status`, 10 changes", "git", "git", [*git, "status", "--porcelain"], peer_tree)
    if not status.problem:
        shutil.copytree(project, peer_tree)
        bench.start([*git, "init", "-q"], peer_tree)
        bench.start([*git, "add", "-A"], peer_tree)
        bench.start([*git, "commit", "-q", "-m", "base"], peer_tree)
        bench.start(["sh", "-c", change], peer_tree)
    bench.start([bench.skep, "run", "--name", "ten", "--", "sh", "-c", change], project)
    cases = [
        status,
        bench.command("`skep diff`, 10 changes", [bench.skep, "diff", "ten"], project),
        bench.command("`skep version` (again)", [bench.skep, "version"], project),
    ]
    ratios = [
        Ratio("diff ÷ git status", lambda m: m["`skep diff`, 10 changes"] / m["`git status`, 10 changes"], 0.1)
    ]
    return cases, ratios, max(5, bench.rounds // 2)


def copy_and_sync(source, target):
    """What approving is compared with: the same bytes copied, each file and each directory synced."""
    os.mkdir(target)
    for name in sorted(os.listdir(source)):
        with open(os.path.join(source, name), "rb") as original:
            with open(os.path.join(target, name), "wb") as copy:
                copy.write(original.read())
                copy.flush()
                os.fsync(copy.fileno())
    handle = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(handle)
    os.close(handle)


def approve_group(bench):
    """A thousand new files, against copying and syncing the same bytes."""
    project = bench.tree("approve", FILES_SMALL)
    source, target = os.path.join(bench.scratch, "thousand"), os.path.join(bench.scratch, "copied")
    os.mkdir(source)
    for number in range(APPROVE_FILES):
        with open(os.path.join(source, f"{number:04}"), "wb") as handle:
            handle.write(os.urandom(APPROVE_BYTES))
    state = {}

    def before():
        state["name"] = bench.unique()
        bench.start(
            [bench.skep, "run", "--name", state["name"], "--mount", f"{source}:/candidate-files:ro", "--",
             "cp", "-r", "/candidate-files", "new"],
            project,
        )

    def after():
        shutil.rmtree(os.path.join(project, "new"))
        bench.remove(state["name"], project)

    copied, approved = f"copy + fsync of {APPROVE_FILES:,} files", f"`skep approve` of {APPROVE_FILES:,} files"
    cases = [
        Case(copied, lambda: copy_and_sync(source, target), after=lambda: shutil.rmtree(target)),
        Case(approved, lambda: bench.start([bench.skep, "approve", state["name"]], project), before, after),
    ]
    return cases, [Ratio("approve ÷ copy + fsync", lambda m: m[approved] / m[copied], 1.5)], max(3, bench.rounds // 8)


def layers_group(bench):
    """Snapshot and fork of an idle sandbox that holds a change."""
    project = bench.tree("layers", FILES_SMALL)
    state = {}

    def before():
        state["name"] = bench.unique()
        bench.start([bench.skep, "run", "--name", state["name"], "--", "sh", "-c", "echo x > x"], project)

    def after():
        bench.remove(state["name"], project)

    def after_fork():
        bench.remove(state["fork"], project)
        after()

    def before_fork():
        before()
        state["fork"] = bench.unique()

    cases = [
        bench.command("`skep version` (beside layers)", [bench.skep, "version"], project),
        Case("`skep snapshot`", lambda: bench.start([bench.skep, "snapshot", state["name"], "one"], project), before, after),
        Case(
            "`skep fork`",
            lambda: bench.start([bench.skep, "fork", state["name"], "--name", state["fork"]], project),
            before_fork,
            after_fork,
        ),
    ]
    base = "`skep version` (beside layers)"
    ratios = [
        Ratio("snapshot − version", lambda m: m["`skep snapshot`"] - m[base], 5.0, " ms"),
        Ratio("fork − version", lambda m: m["`skep fork`"] - m[base], 5.0, " ms"),
    ]
    return cases, ratios, max(5, bench.rounds // 4)


GROUPS = {
    "start": start_group,
    "size": size_group,
    "diff": diff_group,
    "approve": approve_group,
    "layers": layers_group,
}


def run_groups(bench, wanted):
    cases, ratios, problems = [], [], []
    for name in wanted:
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        try:
            group_cases, group_ratios, rounds = GROUPS[name](bench)
        except Missing as error:
            problems.append(f"{name}: {error}")
            continue
        measure(group_cases, rounds)
        cases += group_cases
        ratios += group_ratios
    return cases, ratios, problems


def report(cases, ratios, problems):
    """The tables as Markdown, and whether every aim was met."""
    lines = [
        f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}, "
        f"as {'root' if os.geteuid() == 0 else 'an ordinary user'}, "
        f"load {os.getloadavg()[0]:.1f} at the end",
        "",
        "| what | median ms | 10 % – 90 % | rounds |",
        "|---|---:|---:|---:|",
    ]
    for case in cases:
        if case.samples:
            low, high = case.spread()
            lines.append(f"| {case.name} | {case.median():.2f} | {low:.2f} – {high:.2f} | {len(case.samples)} |")
        else:
            problems.append(f"{case.name}: {case.problem}")
    medians = {case.name: case.median() for case in cases if case.samples}
    lines += ["", "| ratio | measured | aim | |", "|---|---:|---:|---|"]
    met = not problems
    for ratio in ratios:
        try:
            value = ratio.value(medians)
        except KeyError:
            lines.append(f"| {ratio.name} | not measured | ≤ {ratio.aim:g}{ratio.unit} | |")
            met = False
            continue
        good = value <= ratio.aim
        met = met and good
        lines.append(
            f"| {ratio.name} | {value:.2f}{ratio.unit} | ≤ {ratio.aim:g}{ratio.unit} | {'met' if good else 'missed'} |"
        )
    if problems:
        lines += ["", "Not measured:", ""] + [f"- {problem}" for problem in problems]
    return "\n".join(lines) + "\n", met


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skep", default=os.path.join(ROOT, "target", "release", "skep"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    # Not /tmp: it is often in memory, where fsync costs nothing.
    parser.add_argument("--scratch", default="/var/tmp", help="where the trees and the state directory are made")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def main():
    options = arguments()
    skep = os.path.abspath(options.skep)
    if not os.access(skep, os.X_OK):
        sys.exit(f"bench: there is no program `{skep}`; `make bench` builds it")
    scratch = tempfile.mkdtemp(prefix="skep-bench.", dir=options.scratch)
    bench = Bench(skep, scratch, max(1, options.rounds))
    try:
        text, met = report(*run_groups(bench, options.only))
    finally:
        bench.clean()
        shutil.rmtree(scratch, ignore_errors=True)
    print(text, end="")
    if options.write:
        path = os.path.join(ROOT, "docs", "bench", "latest.md")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as handle:
            handle.write("# Benchmark\n\nWritten by `make bench ARGS=--write`. How to read it: benches/run.py.\n\n" + text)
    if options.check and not met:
        sys.exit(1)


main()
