"""What people would use instead of skep, and how each is asked to do the same thing.

A peer that is not installed is named with the package that brings it; one that is installed and does not work here
(a container engine without a daemon) is named with what it said.
"""

import os
import shutil

from measure import Case, Missing

# Packages of npm are installed below this directory by `ci/provision bench`.
NODE = os.environ.get("SKEP_BENCH_NODE", "/var/lib/skep-bench")
IMAGE = "skep-bench-true"


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


def bundle(bench):
    """A root with nothing but a static `true`, for engines that want an image or a bundle of their own."""
    root = os.path.join(bench.scratch, "bundle", "rootfs")
    os.makedirs(os.path.join(root, "bin"))
    source = os.path.join(bench.scratch, "true.c")
    with open(source, "w") as handle:
        handle.write("int main(void) { return 0; }\n")
    bench.start(["gcc", "-static", "-O2", "-o", os.path.join(root, "bin", "true"), source], bench.scratch)
    return os.path.dirname(root)


def engine_case(bench, name, program, package, folder):
    """`ENGINE run` of an imported image; the import is not measured."""
    made = case(bench, name, program, package, [], folder)
    if made.problem:
        return made
    # podman keeps nothing outside the scratch area; docker keeps what its daemon keeps.
    own = []
    if program == "podman":
        own = ["--root", os.path.join(bench.scratch, "podman"), "--runroot", os.path.join(bench.scratch, "podman-run"),
               "--storage-driver", "vfs"]
    archive = os.path.join(bench.scratch, "image.tar")
    run = [program, *own, "run", "--rm", "--network", "none", IMAGE, "/bin/true"]
    try:
        if not os.path.exists(archive):
            bench.start(["tar", "-C", os.path.join(folder, "rootfs"), "-cf", archive, "."], folder)
        bench.start([program, *own, "import", archive, IMAGE], folder)
        bench.start(run, folder)
    except Missing as error:
        made.problem = f"installed, but does not work here: {error}"
    made.run = lambda: bench.start(run, folder)
    return made


def runc_case(bench, folder):
    made = case(bench, "`runc run` of a static `true`", "runc", "runc", [], folder)
    if made.problem:
        return made
    state = ["--root", os.path.join(bench.scratch, "runc")]
    try:
        bench.start(["runc", "spec"], folder)
        config = os.path.join(folder, "config.json")
        with open(config) as handle:
            text = handle.read()
        with open(config, "w") as handle:
            handle.write(text.replace('"terminal": true', '"terminal": false').replace('"sh"', '"/bin/true"'))
        bench.start(["runc", *state, "run", "probe"], folder)
    except Missing as error:
        made.problem = f"installed, but does not work here: {error}"
    made.run = lambda: bench.start(["runc", *state, "run", bench.unique()], folder)
    return made


def starters(bench, project):
    """Every peer that starts a command in a sandbox."""
    cases = [
        case(bench, "`bwrap --unshare-all true`", "bwrap", "bubblewrap", bwrap(project), project),
        case(bench, "`firejail --noprofile --net=none true`", "firejail", "firejail",
             ["firejail", "--quiet", "--noprofile", "--net=none", "--private-tmp", "true"], project),
        node_case(bench, "`codex sandbox -- true`", "@openai/codex", "codex", ["sandbox", "--", "true"], project),
        node_case(bench, "`srt true`", "@anthropic-ai/sandbox-runtime", "srt", ["true"], project),
    ]
    try:
        folder = bundle(bench)
    except Missing as error:
        missing = [Case(name, lambda: None) for name in ("`runc run`", "`podman run`", "`docker run`")]
        for made in missing:
            made.problem = f"no image could be made: {error}"
        return cases + missing
    return cases + [
        runc_case(bench, folder),
        engine_case(bench, "`podman run` of a static `true`", "podman", "podman", folder),
        engine_case(bench, "`docker run` of a static `true`", "docker", "docker.io", folder),
    ]


def copiers(bench, project):
    """Every other way to a copy of a project: command, and how it is taken away."""
    target = os.path.join(bench.scratch, "copy")

    def gone():
        shutil.rmtree(target, ignore_errors=True)

    def made(name, command):
        return Case(name, lambda: bench.start(command, project), gone, gone)

    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    worktree = made("`git worktree add`, 30,000 files", [*git, "worktree", "add", "--detach", "-f", target])
    try:
        bench.program("git", "git")
        if not os.path.isdir(os.path.join(project, ".git")):
            bench.start([*git, "init", "-q"], project)
            bench.start([*git, "add", "-A"], project)
            bench.start([*git, "commit", "-q", "-m", "base"], project)
    except Missing as error:
        worktree.problem = str(error)
    return [
        worktree,
        made("`cp -a`, 30,000 files", ["cp", "-a", project, target]),
        made("`cp -a --reflink=always`, 30,000 files", ["cp", "-a", "--reflink=always", project, target]),
    ]
