"""Groups about the start of a command: in a new sandbox, in one that stands, and what bounds both."""

import os
import shutil
import subprocess

import peers
from measure import Case, Group, Missing, Ratio

RUN, EXEC, VERSION = "`skep run -- true`", "`skep exec -- true`", "`skep version`"
FORK, HELLO = "fork + exec of `true`", "hello world in C"


def compiled(bench, name, source, *options):
    """A C program of this folder, or of the text given."""
    target = os.path.join(bench.scratch, name)
    if os.path.exists(target):
        return target
    if not os.path.exists(source):
        path = target + ".c"
        with open(path, "w") as handle:
            handle.write(source)
        source = path
    bench.program("gcc", "gcc")
    bench.start(["gcc", "-O2", *options, "-o", target, source], bench.scratch)
    return target


def start_group(bench):
    """`version`, `run` and `exec` against a C program, fork and exec, and every peer that starts a command in a sandbox.
    bwrap has the same view as far as it can: everything read-only, the project writable, `/tmp` its own. Container
    engines start a static `true` in an image with nothing else."""
    project = bench.tree("start", 10)
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
        Ratio("run ÷ bwrap", lambda m: m[RUN] / m[peers.BWRAP], 1.0),
        Ratio("(exec − version) ÷ fork+exec", lambda m: (m[EXEC] - m[VERSION]) / m[FORK], 2.0),
    ]
    others = (peers.FIREJAIL, peers.CODEX, peers.SRT, peers.RUNC, peers.PODMAN, peers.DOCKER)
    ratios += [Ratio(f"run ÷ {name.split('`')[1].split()[0]}", lambda m, n=name: m[RUN] / m[n]) for name in others]
    return Group(cases, ratios, bench.rounds, chart=True)


def floor_case(bench, name, *words, after=lambda: None):
    """One of the things that `floor.c` does."""
    floor = compiled(bench, "floor", os.path.join(os.path.dirname(os.path.abspath(__file__)), "floor.c"))

    def run():
        done = subprocess.run([floor, *words], capture_output=True, cwd=bench.scratch)
        if done.returncode != 0:
            raise Missing(done.stderr.decode(errors="replace").strip())
        return int(done.stdout.split()[1]) / 1e3

    return Case(name, run, after=after)


def floor_group(bench):
    """The bare kernel calls without anything around them (`benches/floor.c`): what no sandbox can be faster than."""
    folder = bench.folder("floor-view")
    for name in ("lower", "upper", "work"):
        os.makedirs(os.path.join(folder, name))

    def made(name, *words):
        # The kernel leaves a mark in the work directory of a volatile overlay.
        clear = lambda: shutil.rmtree(os.path.join(folder, "work", "work"), ignore_errors=True)
        return floor_case(bench, name, *words, after=clear)

    cases = [
        made("floor: fork + exec", "exec"),
        made("floor: namespaces without network", "spaces-hostnet"),
        made("floor: all namespaces", "spaces"),
        made("floor: namespaces, overlay, pivot_root", "view", folder),
        made("floor: the same, overlay volatile", "view-volatile", folder),
    ]
    return Group(cases, [], bench.rounds)


def fences_group(bench):
    """A start and an exec with every layer of isolation against the same with none (`--provider subprocess`)."""
    project = bench.tree("fences", 10)
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
    return Group(cases, ratios, bench.rounds)
