"""Copies that share extents, where the filesystem of the scratch area has none: on an XFS in a file, mounted for the
benchmark alone."""

import os
import shutil
import subprocess

from measure import Case, Missing


def has_reflinks(bench):
    """Whether files of the scratch area can share extents."""
    probe = os.path.join(bench.scratch, "probe")
    try:
        bench.start(["cp", "--reflink=always", bench.skep, probe], bench.scratch)
    except Missing:
        return False
    os.unlink(probe)
    return True


def prepared(bench, project):
    """A directory with an image that holds the project, and a place to mount it."""
    if os.geteuid() != 0:
        raise Missing("the scratch area has no shared extents, and only root mounts an image that has (`--scratch DIR`)")
    maker = shutil.which("mkfs.xfs", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if not maker:
        raise Missing("the scratch area has no shared extents, and `mkfs.xfs` is not installed (Debian package `xfsprogs`)")
    folder = bench.folder("reflink")
    os.mkdir(os.path.join(folder, "mounted"))
    image = os.path.join(folder, "image")
    with open(image, "wb") as handle:
        handle.truncate(8 << 30)
    bench.start([maker, "-q", image], folder)
    inside(bench, folder, 'cp -a "$0" mounted/project', project)
    return folder


def inside(bench, folder, script, *words):
    """Runs a script beside the mounted image, in a mount namespace that ends with it."""
    whole = f"mount -o loop image mounted && {script}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", whole, *words], cwd=folder, env=bench.environment,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing((done.stderr.strip().splitlines() or ["no message"])[-1][:160])
    return done.stdout


def reflink_case(bench, name, project):
    """`cp -a --reflink=always` of the project: milliseconds of the copy alone, its source looked at before."""
    state = {}

    def before():
        if "folder" not in state:
            state["folder"] = prepared(bench, project)
        bench.settle()

    def run():
        script = ("du -s mounted/project >/dev/null && date +%s%N && cp -a --reflink=always mounted/project mounted/$0 && "
                  "date +%s%N")
        began, ended = map(int, inside(bench, state["folder"], script, bench.unique()).split())
        return (ended - began) / 1e6

    return Case(f"{name} (XFS in a file)", run, before, most=3)
