"""What is measured, group by group. Each returns its cases, its figures with their aims, and the rounds it needs."""

import os
import shutil
import subprocess
import time

import peers
from measure import Case, Missing, Ratio

FILES_BIG, FILES_SMALL, FILES_HUGE = 30_000, 10, 300_000
APPROVE_BYTES = 4_096
RUN, EXEC, VERSION = "`skep run -- true`", "`skep exec -- true`", "`skep version`"
FORK, HELLO = "fork + exec of `true`", "hello world in C"
BWRAP = "`bwrap --unshare-all true`"


def compiled(bench, name, source, *options):
    """A C program of this folder, or of the text given."""
    target = os.path.join(bench.scratch, name)
    if not os.path.exists(source):
        path = target + ".c"
        with open(path, "w") as handle:
            handle.write(source)
        source = path
    bench.program("gcc", "gcc")
    bench.start(["gcc", "-O2", *options, "-o", target, source], bench.scratch)
    return target


def start_group(bench):
    """version, run and exec against a C program, fork+exec, and every peer that starts a command in a sandbox."""
    project = bench.tree("start", FILES_SMALL)
    skep = bench.skep
    bench.start([skep, "create", "live"], project)
    hello = compiled(bench, "hello", '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n')
    cases = [
        bench.command(FORK, ["/bin/true"], project),
        bench.command(HELLO, [hello], project),
        bench.command(VERSION, [skep, "version"], project),
        bench.command(RUN, [skep, "run", "--", "true"], project),
        bench.command(EXEC, [skep, "exec", "live", "--", "true"], project),
        *peers.starters(bench, project),
    ]
    ratios = [
        Ratio("version ÷ hello world in C", lambda m: m[VERSION] / m[HELLO], 1.5),
        Ratio("run ÷ bwrap", lambda m: m[RUN] / m[BWRAP], 1.0),
        Ratio("(exec − version) ÷ fork+exec", lambda m: (m[EXEC] - m[VERSION]) / m[FORK], 2.0),
    ]
    return cases, ratios, bench.rounds


def floor_group(bench):
    """The bare kernel calls, without anything around them (floor.c): what skep cannot be faster than."""
    floor = compiled(bench, "floor", os.path.join(os.path.dirname(os.path.abspath(__file__)), "floor.c"))
    folder = os.path.join(bench.scratch, "floor-view")
    for name in ("lower", "upper", "work"):
        os.makedirs(os.path.join(folder, name))

    def made(name, *words):
        case = Case(name, lambda: None)

        def after():
            # The kernel leaves a mark in the work directory of a volatile overlay.
            shutil.rmtree(os.path.join(folder, "work", "work"), ignore_errors=True)

        def run():
            done = subprocess.run([floor, *words], capture_output=True, cwd=bench.scratch)
            if done.returncode != 0:
                raise Missing(done.stderr.decode(errors="replace").strip())
            case.taken = int(done.stdout.split()[1]) / 1e3

        case.run, case.after = run, after
        return case

    cases = [
        made("floor: fork + exec", "exec"),
        made("floor: namespaces without network", "spaces-hostnet"),
        made("floor: all namespaces", "spaces"),
        made("floor: namespaces, overlay, pivot_root", "view", folder),
        made("floor: the same, overlay volatile", "view-volatile", folder),
    ]
    return cases, [], bench.rounds


def create_case(bench, name, project):
    state = {}

    def before():
        state["name"] = bench.unique()

    return Case(
        name,
        lambda: bench.start([bench.skep, "create", state["name"]], project),
        before,
        lambda: bench.remove(state["name"], project),
    )


def create_group(bench):
    """create on a small and on a large project alone: does it follow the size?"""
    cases = [
        create_case(bench, f"`skep create`, {count:,} files", bench.tree(f"alone{count}", count))
        for count in (FILES_SMALL, FILES_BIG)
    ]
    small, big = (case.name for case in cases)
    ratios = [Ratio(f"create on {FILES_BIG:,} ÷ on {FILES_SMALL} files", lambda m: m[big] / m[small], 1.2)]
    return cases, ratios, bench.rounds


def size_group(bench):
    """create on three sizes of project, against other ways to a copy of the middle one."""
    sizes = [FILES_SMALL, FILES_BIG] + ([FILES_HUGE] if bench.huge else [])
    cases = [
        create_case(bench, f"`skep create`, {count:,} files", bench.tree(f"files{count}", count)) for count in sizes
    ]
    small, largest = cases[0].name, cases[-1].name
    big = f"`skep create`, {FILES_BIG:,} files"
    ratios = [Ratio(f"create on {sizes[-1]:,} ÷ on {FILES_SMALL} files", lambda m: m[largest] / m[small], 1.1)]
    copies = peers.copiers(bench, os.path.join(bench.scratch, f"files{FILES_BIG}"))
    worktree = copies[0].name
    ratios.append(Ratio("git worktree add ÷ create", lambda m: m[worktree] / m[big], 1000.0, at_least=True))
    return cases + copies, ratios, max(5, bench.rounds // 4)


def diff_group(bench):
    """1, 10 and 1,000 changes in a large repository, against git status of ten changes."""
    project = os.path.join(bench.scratch, f"files{FILES_BIG}")
    if not os.path.isdir(project):
        bench.tree(f"files{FILES_BIG}", FILES_BIG)
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]

    def change(count):
        return (f"i=0; while [ $i -lt {count} ]; do d=$((i % 300)); f=$((i / 300)); "
                "echo changed >> $(printf 'd%03d/f%02d.txt' $d $f); i=$((i+1)); done")

    peer_tree = os.path.join(bench.scratch, "big-git")
    status = peers.case(bench, "`git status`, 10 changes", "git", "git", [*git, "status", "--porcelain"], peer_tree)
    if not status.problem:
        shutil.copytree(project, peer_tree, ignore=shutil.ignore_patterns(".git"))
        bench.start([*git, "init", "-q"], peer_tree)
        bench.start([*git, "add", "-A"], peer_tree)
        bench.start([*git, "commit", "-q", "-m", "base"], peer_tree)
        bench.start(["sh", "-c", change(10)], peer_tree)
    cases = [status]
    for count in (1, 10, 1000):
        name = f"diff{count}"
        bench.start([bench.skep, "run", "--name", name, "--", "sh", "-c", change(count)], project)
        cases.append(bench.command(f"`skep diff`, {count:,} changes", [bench.skep, "diff", name], project))
    def ratio(m):
        return m["`skep diff`, 10 changes"] / m["`git status`, 10 changes"]

    ratios = [Ratio("diff ÷ git status", ratio, 0.1), Ratio("diff ÷ git status, processor", ratio, 0.1, worked=True)]
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
    """1, 10 and 1,000 new files approved and undone, against copying and syncing the same bytes."""
    project = bench.tree("approve", FILES_SMALL)
    cases, ratios = [], []
    for count in (1, 10, 1000):
        source, target = os.path.join(bench.scratch, f"new{count}"), os.path.join(bench.scratch, f"copied{count}")
        os.mkdir(source)
        for number in range(count):
            with open(os.path.join(source, f"{number:04}"), "wb") as handle:
                handle.write(os.urandom(APPROVE_BYTES))
        state = {}

        def before(state=state, source=source):
            state["name"] = bench.unique()
            bench.start(
                [bench.skep, "run", "--name", state["name"], "--mount", f"{source}:/candidate-files:ro", "--",
                 "cp", "-r", "/candidate-files", "new"],
                project,
            )

        def approve(state=state):
            bench.start([bench.skep, "approve", state["name"]], project)

        def before_undo(before=before, approve=approve):
            before()
            approve()

        def after(state=state):
            shutil.rmtree(os.path.join(project, "new"), ignore_errors=True)
            bench.remove(state["name"], project)

        copied, approved = f"copy + fsync of {count:,} files", f"`skep approve` of {count:,} files"
        cases += [
            Case(copied, lambda s=source, t=target: copy_and_sync(s, t), after=lambda t=target: shutil.rmtree(t)),
            Case(approved, approve, before, after),
            Case(f"`skep undo` of {count:,} files", lambda: bench.start([bench.skep, "undo"], project), before_undo, after),
        ]
        if count == 1000:
            ratios.append(Ratio("approve of 1,000 ÷ copy + fsync", lambda m, a=approved, c=copied: m[a] / m[c], 1.5))
    return cases, ratios, max(3, bench.rounds // 8)


def layers_group(bench):
    """Snapshot and fork of an idle sandbox: a small one, and one with many changes on a large project."""
    base = "`skep version` (beside layers)"
    small = bench.tree("layers", FILES_SMALL)
    large = os.path.join(bench.scratch, f"files{FILES_BIG}")
    if not os.path.isdir(large):
        bench.tree(f"files{FILES_BIG}", FILES_BIG)
    cases, ratios = [bench.command(base, [bench.skep, "version"], small)], []
    for project, files, changes in ((small, FILES_SMALL, 1), (large, FILES_BIG, 1000)):
        what = f"{changes:,} changed of {files:,}"
        snapshot, fork = f"`skep snapshot`, {what}", f"`skep fork`, {what}"
        script = f"i=0; while [ $i -lt {changes} ]; do echo x > new$i; i=$((i+1)); done"
        cases += [layers_case(bench, snapshot, project, script, "snapshot"), layers_case(bench, fork, project, script, "fork")]
        ratios += [
            Ratio(f"snapshot − version, {what}", lambda m, name=snapshot: m[name] - m[base], 5.0, " ms"),
            Ratio(f"fork − version, {what}", lambda m, name=fork: m[name] - m[base], 5.0, " ms"),
            Ratio(f"snapshot − version, {what}, processor", lambda m, name=snapshot: m[name] - m[base], 5.0, " ms", worked=True),
            Ratio(f"fork − version, {what}, processor", lambda m, name=fork: m[name] - m[base], 5.0, " ms", worked=True),
        ]
    return cases, ratios, max(5, bench.rounds // 4)


def layers_case(bench, name, project, script, verb):
    """One snapshot or fork, each round of a new sandbox at rest."""
    state = {}

    def before():
        state["name"], state["fork"] = bench.unique(), bench.unique()
        bench.start([bench.skep, "run", "--name", state["name"], "--", "sh", "-c", script], project)

    def run():
        words = [state["name"], "one"] if verb == "snapshot" else [state["name"], "--name", state["fork"]]
        bench.start([bench.skep, verb, *words], project)

    def after():
        if verb == "fork":
            bench.remove(state["fork"], project)
        bench.remove(state["name"], project)

    return Case(name, run, before, after)


def burst_group(bench):
    """A hundred at once, each create, exec, diff, remove; the figures are of one of them from its start to its end."""
    project = bench.tree("burst", FILES_SMALL)
    skep, width = bench.skep, bench.burst
    script = '"$1" create "$2" && "$1" exec "$2" -- true && "$1" diff "$2" && "$1" rm --discard "$2"'
    case = Case(f"create → exec → diff → rm, {width} at once", lambda: None)
    failed = []

    def run():
        names = [bench.unique() for _ in range(width)]
        began = time.perf_counter()
        running = [
            subprocess.Popen(["sh", "-c", script, "sh", skep, name], cwd=project, env=bench.environment,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for name in names
        ]
        ends = []
        while running:
            for process in list(running):
                if process.poll() is not None:
                    ends.append((time.perf_counter() - began) * 1e3)
                    running.remove(process)
                    if process.returncode:
                        failed.append(process.returncode)
            time.sleep(0.0005)
        ends.sort()
        case.taken = ends[round((len(ends) - 1) * 0.99)]
        if failed:
            raise Missing(f"{len(failed)} of {width} failed")

    case.run = run
    ratios = [Ratio(f"99th of {width} done after", lambda m: m[case.name], 1000.0, " ms")]
    return [case], ratios, max(3, bench.rounds // 10)


def pss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as handle:
        return sum(int(line.split()[1]) for line in handle if line.startswith("Pss:"))


def idle_group(bench):
    """Memory of each of many idle sandboxes: keeper and init, shared pages counted once (PSS)."""
    project = bench.tree("idle", FILES_SMALL)
    names = [bench.unique() for _ in range(bench.idle)]
    before = {int(pid) for pid in filter(str.isdigit, os.listdir("/proc"))}
    case = Case(f"KiB of each of {bench.idle} idle sandboxes", lambda: None)

    def run():
        for name in names:
            bench.start([bench.skep, "create", name], project)
        total = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) in before:
                continue
            try:
                if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(bench.skep):
                    total += pss(pid)
            except OSError:
                continue
        case.taken = total / len(names)

    def after():
        for name in names:
            bench.remove(name, project)

    case.run, case.after = run, after
    return [case], [Ratio("idle sandbox", lambda m: m[case.name] / 1000, 1.5, " MB")], 2


def inside_group(bench):
    """A compile, git status and an untar, inside against outside."""
    project = bench.tree("inside", 2_000)
    functions = "".join(f"int f{n}(int a) {{ return a * {n} + (a >> {n % 7}); }}\n" for n in range(6_000))
    with open(os.path.join(project, "unit.c"), "w") as handle:
        handle.write(functions)
    git = "git -c user.name=b -c user.email=b@localhost -c gc.auto=0"
    bench.start(["sh", "-c", f"{git} init -q && {git} add -A && {git} commit -qm base"], project)
    files = bench.tree("untar", 10_000)
    bench.start(["tar", "-C", files, "-cf", os.path.join(project, "files.tar"), "."], project)
    bench.start([bench.skep, "create", "work", "--net", "none"], project)
    work = {
        "compile": "gcc -O2 -c unit.c -o unit.o",
        "`git status`": "git status --porcelain >/dev/null",
        "untar of 10,000 files": "rm -rf out && mkdir out && tar -C out -xf files.tar",
    }
    aims = {"compile": 1.03, "`git status`": 1.15, "untar of 10,000 files": 1.15}
    cases, ratios = [], []
    nothing = "`skep exec -- sh -c :`"
    cases.append(bench.command(nothing, [bench.skep, "exec", "work", "--", "sh", "-c", ":"], project))
    for name, script in work.items():
        outside, inside = f"{name}, outside", f"{name}, inside"
        cases.append(bench.command(outside, ["sh", "-c", script], project))
        cases.append(bench.command(inside, [bench.skep, "exec", "work", "--", "sh", "-c", script], project))
        ratios.append(Ratio(f"{name}: (inside − exec) ÷ outside",
                            lambda m, o=outside, i=inside: (m[i] - m[nothing]) / m[o], aims[name]))
    return cases, ratios, max(5, bench.rounds // 4)


def fences_group(bench):
    """A start and an exec with every layer of isolation against the same with none (`subprocess`)."""
    project = bench.tree("fences", FILES_SMALL)
    skep, off = bench.skep, ["--provider", "subprocess"]
    bench.start([skep, "create", "fenced"], project)
    bench.start([skep, "create", "bare", *off], project)
    run_on, run_off = "`skep run -- true`, all layers", "`skep run -- true`, no layer"
    exec_on, exec_off = "`skep exec -- true`, all layers", "`skep exec -- true`, no layer"
    cases = [
        bench.command(run_on, [skep, "run", "--", "true"], project),
        bench.command(run_off, [skep, "run", *off, "--", "true"], project),
        bench.command(exec_on, [skep, "exec", "fenced", "--", "true"], project),
        bench.command(exec_off, [skep, "exec", "bare", "--", "true"], project),
    ]
    ratios = [
        Ratio("run: all layers ÷ none", lambda m: m[run_on] / m[run_off], 2.0),
        Ratio("exec: all layers ÷ none", lambda m: m[exec_on] / m[exec_off], 1.5),
    ]
    return cases, ratios, bench.rounds


GROUPS = {
    "start": start_group,
    "floor": floor_group,
    "create": create_group,
    "size": size_group,
    "diff": diff_group,
    "approve": approve_group,
    "layers": layers_group,
    "burst": burst_group,
    "idle": idle_group,
    "inside": inside_group,
    "fences": fences_group,
}
