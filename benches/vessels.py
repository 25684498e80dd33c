"""Groups about other vessels of a sandbox, each beside the program it is made of."""

import glob
import json
import os
import select
import subprocess
import time

import engines
from measure import Case, Group, Missing, Ratio

# What both sides show of the host, read-only.
SYSTEM = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"]
NAMED = "skep-bench-standing"


def pair(bench, provider, project, ran, executed):
    """`run` and `exec` of skep with that provider and of the peer, and their ratios. No aims: they are nobody's yet."""
    skep, name = [bench.skep, "--quiet"], f"live-{provider.split(':')[0]}"
    bench.start([*skep, "create", name, "--provider", provider], project)
    run, exec_ = f"`skep run --provider {provider} -- true`", f"`skep exec -- true`, {provider}"
    cases = [
        bench.command(run, [*skep, "run", "--provider", provider, "--", "true"], project),
        ran,
        bench.command(exec_, [*skep, "exec", name, "--", "true"], project),
        executed,
    ]
    word = provider.split(":")[-1]
    ratios = [
        Ratio(f"run ÷ {word} run", lambda m: m[run] / m[ran.name]),
        Ratio(f"exec ÷ {word} exec", lambda m: m[exec_] / m[executed.name]),
    ]
    return Group(cases, ratios, max(5, bench.rounds // 3), chart=True)


def docker_group(bench):
    """The docker provider beside the engine's own command line, on one private engine: a new sandbox for `true` (copy on
    write, change set, removal) against `docker run --rm`, and `true` in one that stands against `docker exec`. The
    engine's containers have the same limits and see the same directories of the host."""
    project = bench.tree("docker", 10)
    engines.start_docker(bench)
    # The provider puts its image there.
    bench.start([bench.skep, "create", "first", "--provider", "docker"], project)
    question = ["docker", "images", "--quiet", "skep/host-view"]
    listed = subprocess.run(question, capture_output=True, text=True, env=bench.environment)
    if not listed.stdout.split():
        raise Missing("the docker provider left no image `skep/host-view`")
    words = ["--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--tmpfs", "/tmp", "--memory", "2g", "--pids-limit", "512"]
    for path in SYSTEM:
        if os.path.isdir(path) and not os.path.islink(path):
            words += ["--volume", f"{path}:{path}:ro"]
    words.append(listed.stdout.split()[0])
    bench.start(["docker", "run", "--detach", "--name", NAMED, *words, "/bin/sleep", "3600"], project)
    bench.at_end(lambda: subprocess.run(["docker", "rm", "--force", NAMED], env=bench.environment, capture_output=True))
    return pair(
        bench, "docker", project,
        bench.command("`docker run --rm … true`, same view", ["docker", "run", "--rm", *words, "/bin/true"], project),
        bench.command("`docker exec … true`", ["docker", "exec", NAMED, "/bin/true"], project),
    )


def bundle(bench, project, arguments):
    """A bundle for runc with the view of a sandbox: the host read-only, the project below an overlay, no network."""
    folder = bench.folder(bench.unique())
    at = lambda name: os.path.join(folder, name)
    for name in ("rootfs", "upper", "work"):
        os.mkdir(at(name))
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
         "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "noexec", "nodev", "mode=1777"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]},
    ]
    for path in SYSTEM:
        if os.path.islink(path):
            os.symlink(os.readlink(path), at("rootfs" + path))
        elif os.path.isdir(path):
            mounts.append({"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro", "nosuid", "nodev"]})
    mounts.append({"destination": project, "type": "overlay", "source": "overlay",
                   "options": [f"lowerdir={project}", f"upperdir={at('upper')}", f"workdir={at('work')}", "volatile"]})
    none = {kind: [] for kind in ("bounding", "effective", "permitted")}
    process = {"terminal": False, "user": {"uid": 0, "gid": 0}, "args": arguments, "env": ["PATH=/usr/bin:/bin"],
               "cwd": project, "capabilities": none, "noNewPrivileges": True}
    spaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network", "cgroup")]
    with open(at("config.json"), "w") as handle:
        json.dump({"ociVersion": "1.0.2", "hostname": "bench", "root": {"path": "rootfs", "readonly": False},
                   "mounts": mounts, "process": process, "linux": {"namespaces": spaces}}, handle)
    return folder


def oci_group(bench):
    """The oci provider with runc beside plain runc: a new sandbox for `true` (copy on write, change set, removal) against
    `runc run` of a bundle with the same view (the host read-only, an overlay of the project, no network), and `true` in
    one that stands against `runc exec`."""
    bench.program("runc", "runc")
    if os.geteuid() != 0:
        raise Missing("plain runc with that view is for root")
    project = bench.tree("oci", 10)
    runc = ["runc", "--root", os.path.join(bench.scratch, "runc-state")]
    once, standing = bundle(bench, project, ["/bin/true"]), bundle(bench, project, ["/bin/sleep", "3600"])
    mark = os.path.join(once, "work", "work", "incompat")
    # Not by `bench.start`: the container would keep the pipe for messages open.
    bench.at_end(lambda: subprocess.run([*runc, "delete", "--force", NAMED], capture_output=True))
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run([*runc, "run", "--detach", NAMED], cwd=standing, env=bench.environment, **quiet).returncode != 0:
        raise Missing("plain runc does not start a container with that view here")
    ran = Case("`runc run` of the same view", lambda: bench.start([*runc, "run", bench.unique()], once),
               # The kernel leaves a mark in the work directory of a volatile overlay.
               after=lambda: subprocess.run(["rm", "-rf", mark]))
    executed = bench.command("`runc exec … true`", [*runc, "exec", NAMED, "/bin/true"], project)
    return pair(bench, "oci:runc", project, ran, executed)


def machine_of(name):
    """The command line of the QEMU of a sandbox, with the files it has open in place of its descriptors."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as handle:
                words = [os.fsdecode(word) for word in handle.read().split(b"\0")[:-1]]
        except OSError:
            continue
        if words and "qemu-system" in words[0] and any(f" skep.name={name} " in word for word in words):
            own = "/proc/self/fd/"
            there = os.path.join(os.path.dirname(path), "fd", "")
            return [os.readlink(word.replace(own, there)) if word.startswith(own) else word for word in words]
    raise Missing("the QEMU of a sandbox was not found")


def plain_machine(words):
    """The same machine without the two sockets to the sandbox, asked to say one line and end."""
    tied = ("share", "fd=", "virtserialport", "virtio-serial")
    kept, rest = [], iter(words)
    for option in rest:
        if option not in ("-chardev", "-device", "-append"):
            kept.append(option)
            continue
        value = next(rest)
        if option == "-append":
            line = [word for word in value.split() if not word.startswith("skep.")]
            kept += [option, " ".join([*line, "skep.probe"])]
        elif not any(part in value for part in tied):
            kept += [option, value]
    return kept


def first_words(command, folder):
    """Starts the machine, waits for what its init says on the console, and ends it; milliseconds until then."""
    began = time.perf_counter()
    machine = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = b""
    try:
        while b"this guest boots" not in said:
            ready, _, _ = select.select([machine.stdout], [], [], 120)
            more = os.read(machine.stdout.fileno(), 65536) if ready else b""
            if not more:
                raise Missing(f"plain QEMU said only: {said[-160:].decode(errors='replace')}")
            said += more
        return (time.perf_counter() - began) * 1e3
    finally:
        machine.kill()
        machine.wait()


def microvm_group(bench):
    """The microvm provider beside plain QEMU: `create` and the first `exec` against QEMU with the same kernel, initial
    file system and options (but no share and no serial line) until its init has said a line on the console; then `exec`
    in a guest that stands against `exec` in an ordinary sandbox. Software emulation where KVM boots nothing."""
    bench.program("qemu-system-x86_64", "qemu-system-x86")
    project = bench.tree("microvm", 10)
    bench.environment["SKEP_MICROVM_EMULATION"] = "1"
    skep = [bench.skep, "--quiet"]
    bench.start([*skep, "create", "guest", "--provider", "microvm"], project)
    bench.start([*skep, "create", "ordinary"], project)
    machine = machine_of("guest")
    command = plain_machine(machine)
    accelerated = "KVM" if any("accel=kvm" in word for word in machine) else "software emulation"
    state = {}

    def create_and_exec():
        bench.start([*skep, "create", state["name"], "--provider", "microvm"], project)
        bench.start([*skep, "exec", state["name"], "--", "true"], project)

    created = Case(f"`skep create` + first `exec`, microvm ({accelerated})", create_and_exec,
                   lambda: state.update(name=bench.unique()), lambda: bench.remove(state["name"], project), most=3)
    booted = Case(f"plain QEMU to its first words ({accelerated})", lambda: first_words(command, project), most=3)
    guest = bench.command("`skep exec -- true`, microvm", [*skep, "exec", "guest", "--", "true"], project)
    ordinary = bench.command("`skep exec -- true`, ordinary", [*skep, "exec", "ordinary", "--", "true"], project)
    ratios = [
        Ratio("create + first exec ÷ plain QEMU", lambda m: m[created.name] / m[booted.name]),
        Ratio("exec: microvm ÷ ordinary", lambda m: m[guest.name] / m[ordinary.name]),
    ]
    return Group([created, booted, guest, ordinary], ratios, 5, chart=True)
