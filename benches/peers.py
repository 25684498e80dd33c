"""What people would use instead of skep, and how each is asked to do the same thing.

A peer that is not installed is named with the package that brings it; one that is installed and does not work here is
named with what it said.
"""

import os

import engines
import reflink
from measure import Case, Missing

# Packages of npm are installed below this directory by `ci/provision bench`.
NODE = os.environ.get("SKEP_BENCH_NODE", "/var/lib/skep-bench")
BWRAP, FIREJAIL = "`bwrap --unshare-all true`", "`firejail --noprofile --net=none true`"
CODEX, SRT = "`codex sandbox -- true`", "`srt true`"
RUNC, PODMAN, DOCKER = (f"`{name} run` of a static `true`" for name in ("runc", "podman", "docker"))
GIT = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]


def bwrap(project):
    """The view of skep, as far as bwrap has it: everything read-only, the project writable."""
    return [
        "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
        "--bind", project, project, "--unshare-all", "--die-with-parent", "--chdir", project, "true",
    ]


def case(bench, name, program, package, command, cwd):
    """A case that is reported as missing if its program is."""
    made = bench.command(name, command, cwd)
    try:
        bench.program(program, package)
    except Missing as error:
        made.problem = str(error)
    return made


def node_case(bench, name, package, program, arguments, cwd):
    """The same for a program that npm brings."""
    path = os.path.join(NODE, "node_modules", ".bin", program)
    made = bench.command(name, [path, *arguments], cwd)
    if not os.path.exists(path):
        made.problem = f"`{program}` is not installed (npm package `{package}`; `ci/provision bench`)"
    return made


def tried(bench, name, prepare):
    """A case whose command `prepare` makes and which is tried once before."""
    made = Case(name, lambda: None)
    try:
        command, folder = prepare()
        bench.start(command() if callable(command) else command, folder)
        made.run = lambda: bench.start(command() if callable(command) else command, folder)
    except Missing as error:
        made.problem = str(error)
    return made


def starters(bench, project):
    """Every peer that starts a command in a sandbox."""
    return [
        case(bench, BWRAP, "bwrap", "bubblewrap", bwrap(project), project),
        case(bench, FIREJAIL, "firejail", "firejail",
             ["firejail", "--quiet", "--noprofile", "--net=none", "--private-tmp", "true"], project),
        node_case(bench, CODEX, "@openai/codex", "codex", ["sandbox", "--", "true"], project),
        node_case(bench, SRT, "@anthropic-ai/sandbox-runtime", "srt", ["true"], project),
        tried(bench, RUNC, lambda: engines.runc_run(bench)),
        tried(bench, PODMAN, lambda: engines.podman_run(bench)),
        tried(bench, DOCKER, lambda: engines.docker_run(bench)),
    ]


def repository(bench, project):
    """Makes a repository of a tree."""
    bench.program("git", "git")
    if not os.path.isdir(os.path.join(project, ".git")):
        # With that threshold what is added goes into one pack instead of a file each.
        for words in (["init", "-q"], ["-c", "core.bigFileThreshold=1", "add", "-A"], ["commit", "-q", "-m", "base"]):
            bench.start([*GIT, *words], project)


def copiers(bench, project):
    """Every other way to a copy of a project, a few rounds each."""
    target = os.path.join(bench.scratch, "copy")

    def made(name, command):
        return Case(name, lambda: bench.start(command, project), bench.settle, lambda: bench.put_aside(target), most=3)

    worktree = made("`git worktree add`, 30,000 files", [*GIT, "worktree", "add", "--detach", "-f", target])
    try:
        repository(bench, project)
    except Missing as error:
        worktree.problem = str(error)
    name = "`cp -a --reflink=always`, 30,000 files"
    shared = made(name, ["cp", "-a", "--reflink=always", project, target])
    if not reflink.has_reflinks(bench):
        shared = reflink.reflink_case(bench, name, project)
    return [worktree, made("`cp -a`, 30,000 files", ["cp", "-a", project, target]), shared]
