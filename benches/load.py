"""Groups about many sandboxes through the command line: a hundred at once, a thousand at rest."""

import concurrent.futures
import os
import shutil
import subprocess
import time

import peers
from measure import Case, Group, Missing, Ratio

LIFE = '"$1" create "$2" && "$1" exec "$2" -- true && "$1" diff "$2" && "$1" rm --discard "$2"'
# Git reads what others have half made, and then fails: it is asked again, at most fifty times.
WORKTREE = """again() { n=0; until "$@"; do n=$((n + 1)); [ $n -lt 50 ] || exit 1; done; }
again git worktree add -q -f --detach "$1/$2"; cd "$1/$2" && true && git status --porcelain && cd .. || exit 1
again git -C "$3" worktree remove --force "$1/$2"
"""


def at_once(bench, commands, cwd):
    """Starts them all and waits for each: milliseconds until 99 of a hundred had ended."""
    began = time.perf_counter()
    running = {}
    for command in commands:
        process = subprocess.Popen(command, cwd=cwd, env=bench.environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running[process.pid] = process
    ends, failed = [], 0
    while running:
        pid, status = os.wait()
        process = running.pop(pid, None)
        if process is not None:
            process.returncode = os.waitstatus_to_exitcode(status)
            failed += process.returncode != 0
            ends.append((time.perf_counter() - began) * 1e3)
    if failed:
        raise Missing(f"{failed} of {len(commands)} failed")
    return ends[round((len(ends) - 1) * 0.99)]


def burst_group(bench):
    """Many at once through the command line, each `create`, `exec`, `diff`, `rm`: until the 99th percentile of them had ended,
    counted from the start of the first. Beside it the same number of `bwrap`, which copies and records nothing, and of
    worktrees added, looked at and removed (asked again where git fails because another is half made). The aim of the issue is about the server: see `api`."""
    project, width = bench.tree("burst", 10), bench.width
    mine = Case(f"`skep` create → exec → diff → rm, {width} at once",
                lambda: at_once(bench, [["sh", "-c", LIFE, "sh", bench.skep, bench.unique()] for _ in range(width)], project))
    caged = peers.case(bench, f"`bwrap … true`, {width} at once", "bwrap", "bubblewrap", [], project)
    caged.run = lambda: at_once(bench, [peers.bwrap(project)] * width, project)
    trees = peers.case(bench, f"`git worktree` add → status → remove, {width} at once", "git", "git", [], project)
    copied, place = shutil.copytree(project, os.path.join(bench.scratch, "burst-git")), bench.folder("burst-trees")
    if not trees.problem:
        peers.repository(bench, copied)
    trees.run = lambda: at_once(
        bench, [["sh", "-c", WORKTREE, "sh", place, bench.unique(), copied] for _ in range(width)], copied)
    for case in (mine, caged, trees):
        case.before = bench.settle
    ratios = [
        Ratio("burst ÷ bwrap", lambda m: m[mine.name] / m[caged.name]),
        Ratio("burst ÷ git worktree", lambda m: m[mine.name] / m[trees.name]),
    ]
    return Group([mine, caged, trees], ratios, max(3, bench.rounds // 8), chart=True)


def holders(program):
    """Processes of this program that hold sandboxes, keepers and process 1 of each; not a server and its workers."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe") != program:
                continue
            with open(f"/proc/{pid}/cmdline", "rb") as handle:
                words = handle.read().split(b"\0")
        except OSError:
            continue
        if b"serve" not in words and not words[0].startswith(b"skep: worker"):
            found.append(pid)
    return found


def weight_of_each(bench, count):
    """KiB of each of so many sandboxes: keeper and init, shared pages by share (Pss)."""
    total = 0
    for pid in holders(os.path.realpath(bench.skep)):
        try:
            with open(f"/proc/{pid}/smaps_rollup") as handle:
                total += sum(int(line.split()[1]) for line in handle if line.startswith("Pss:"))
        except OSError:
            continue
    return total / count


def idle_group(bench):
    """Memory of each of many idle sandboxes: keeper and init, shared pages by share (PSS), before and after a first exec in
    each; and what a run and an exec take beside them."""
    project, count = bench.tree("idle", 10), bench.idle
    names = [bench.unique() for _ in range(count)]

    def each(action):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(action, names))

    run = f"`skep run -- true` beside {count:,} idle"
    execute = f"`skep exec -- true` beside {count:,} idle"
    each(lambda name: bench.start([bench.skep, "create", name], project))
    weigh = lambda: weight_of_each(bench, count)
    fresh = Case(f"each of {count:,} idle sandboxes", weigh, unit="KiB", most=1)
    used = Case(f"each of {count:,} idle sandboxes, after an exec", weigh, unit="KiB", most=1)
    used.before = lambda: each(lambda name: bench.start([bench.skep, "exec", name, "--", "true"], project))
    cases = [
        fresh,
        used,
        bench.command(run, [bench.skep, "run", "--", "true"], project),
        bench.command(execute, [bench.skep, "exec", names[0], "--", "true"], project),
    ]
    ratios = [
        Ratio("an idle sandbox", lambda m: m[fresh.name] * 1024 / 1e6, 1.5, "MB"),
        Ratio("an idle sandbox after an exec", lambda m: m[used.name] * 1024 / 1e6, 1.5, "MB"),
    ]
    return Group(cases, ratios, max(5, bench.rounds // 4))
