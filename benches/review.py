"""Groups about what a sandbox changed: seen, taken over, taken back, kept as a layer."""

import os
import shutil

import peers
from copies import BIG, SMALL, big_tree
from measure import Case, Group, Ratio

COUNTS = (1, 10, 1000)
APPROVE_BYTES = 4_096


def diff_group(bench):
    """`skep diff` of 1, 10 and 1,000 changed files of 30,000, against `git status` of ten changed files of the same tree."""
    project = big_tree(bench)

    def change(count):
        return (f"i=0; while [ $i -lt {count} ]; do d=$((i % 300)); f=$((i / 300)); "
                "echo changed >> $(printf 'd%03d/f%02d.txt' $d $f); i=$((i+1)); done")

    peer_tree = os.path.join(bench.scratch, "big-git")
    status = peers.case(bench, "`git status`, 10 changes", "git", "git", [*peers.GIT, "status", "--porcelain"], peer_tree)
    if not status.problem:
        shutil.copytree(project, peer_tree, ignore=shutil.ignore_patterns(".git"))
        peers.repository(bench, peer_tree)
        bench.start(["sh", "-c", change(10)], peer_tree)
    names = {count: f"`skep diff`, {count:,} changes" for count in COUNTS}
    cases = [status]
    for count in COUNTS:
        bench.start([bench.skep, "run", "--name", f"diff{count}", "--", "sh", "-c", change(count)], project)
        cases.append(bench.command(names[count], [bench.skep, "diff", f"diff{count}"], project))
    bench.settle()

    def ratio(m):
        return m[names[10]] / m[status.name]

    ratios = [
        Ratio("diff of 10 ÷ git status", ratio, 0.1),
        Ratio("diff of 10 ÷ git status, processor", ratio, 0.1, worked=True),
    ]
    return Group(cases, ratios, max(5, bench.rounds // 2), chart=True)


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


def approve_cases(bench, project, count):
    """Copying, approving and undoing `count` new files."""
    source, target = bench.folder(f"new{count}"), os.path.join(bench.scratch, f"copied{count}")
    for number in range(count):
        with open(os.path.join(source, f"{number:04}"), "wb") as handle:
            handle.write(os.urandom(APPROVE_BYTES))
    state = {}

    def changed():
        state["name"] = bench.unique()
        words = ["--mount", f"{source}:/candidate-files:ro", "--", "cp", "-r", "/candidate-files", "new"]
        bench.start([bench.skep, "run", "--name", state["name"], *words], project)
        bench.settle()

    def approve():
        bench.start([bench.skep, "approve", state["name"]], project)

    def approved():
        changed()
        approve()
        bench.settle()

    def after():
        bench.put_aside(os.path.join(project, "new"))
        bench.remove(state["name"], project)

    return [
        Case(f"copy + fsync of {count:,} files", lambda: copy_and_sync(source, target), bench.settle,
             lambda: bench.put_aside(target)),
        Case(f"`skep approve` of {count:,} files", approve, changed, after),
        Case(f"`skep undo` of {count:,} files", lambda: bench.start([bench.skep, "undo"], project), approved, after),
    ]


def approve_group(bench):
    """1, 10 and 1,000 new files of 4 KiB approved and undone, against copying the same bytes and syncing each file. Data is
    synced before each; the change itself is made outside the measured time."""
    project = bench.tree("approve", SMALL)
    cases = [case for count in COUNTS for case in approve_cases(bench, project, count)]
    copied, approved, undone = (case.name for case in cases[-3:])
    ratios = [
        Ratio("approve of 1,000 ÷ copy + fsync", lambda m: m[approved] / m[copied], 1.5),
        Ratio("undo of 1,000 ÷ copy + fsync", lambda m: m[undone] / m[copied]),
    ]
    return Group(cases, ratios, max(3, bench.rounds // 5), chart=True)


def layers_case(bench, name, project, script, verb):
    """One snapshot or fork, each round of a new sandbox at rest."""
    state = {}

    def before():
        state["name"], state["fork"] = bench.unique(), bench.unique()
        bench.start([bench.skep, "run", "--name", state["name"], "--", "sh", "-c", script], project)
        bench.settle()

    def run():
        words = [state["name"], "one"] if verb == "snapshot" else [state["name"], "--name", state["fork"]]
        bench.start([bench.skep, verb, *words], project)

    def after():
        if verb == "fork":
            bench.remove(state["fork"], project)
        bench.remove(state["name"], project)

    return Case(name, run, before, after)


def layers_group(bench):
    """Snapshot and fork of a sandbox at rest, less the start of the program: a small one, and one with many changes on a
    large project. Data is synced before each."""
    base = "`skep version` (beside layers)"
    small = bench.tree("layers", SMALL)
    cases, ratios = [bench.command(base, [bench.skep, "version"], small, before=bench.settle)], []
    for project, files, changes in ((small, SMALL, 1), (big_tree(bench), BIG, 1000)):
        what = f"{changes:,} changed of {files:,}"
        script = f"i=0; while [ $i -lt {changes} ]; do echo x > new$i; i=$((i+1)); done"
        for verb in ("snapshot", "fork"):
            case = layers_case(bench, f"`skep {verb}`, {what}", project, script, verb)
            cases.append(case)
            ratios += [
                Ratio(f"{verb} − version, {what}", lambda m, n=case.name: m[n] - m[base], 5.0, "ms"),
                Ratio(f"{verb} − version, {what}, processor", lambda m, n=case.name: m[n] - m[base], 5.0, "ms", worked=True),
            ]
    return Group(cases, ratios, max(5, bench.rounds // 2))
