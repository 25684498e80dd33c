"""The ground of a run: a scratch area, a state directory, the ways to start a program, and the end of everything."""

import concurrent.futures
import contextlib
import os
import shutil
import subprocess

from measure import Case, Missing

# Seconds after which a command is given up.
PATIENCE = 300


class Bench:
    """The scratch area, the state directory, and the ways to start a program."""

    def __init__(self, skep, scratch, options):
        self.scratch, self.rounds = scratch, max(1, options.rounds)
        self.huge, self.width, self.idle = options.huge, options.burst, options.idle
        # A program of its own, so that other sandboxes of this host are not weighed.
        self.skep = os.path.join(scratch, "skep")
        shutil.copy(skep, self.skep)
        self.home, self.aside = os.path.join(scratch, "state"), os.path.join(scratch, "aside")
        os.mkdir(self.home, 0o700)
        os.mkdir(self.aside)
        # HOME is private too: git must not read the caller's configuration.
        self.environment = {**os.environ, "SKEP_HOME": self.home, "HOME": scratch, "LC_ALL": "C"}
        for name in ("SKEP_HOST", "SKEP_STORE", "DOCKER_HOST", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            self.environment.pop(name, None)
        # codex keeps helpers there, and refuses to in a directory for temporary files.
        self.environment["CODEX_HOME"] = os.path.join(os.environ.get("SKEP_BENCH_NODE", "/var/lib/skep-bench"), "codex")
        self.counter = 0
        self.ends = contextlib.ExitStack()

    def start(self, command, cwd):
        said = " ".join(command).replace(self.scratch, "…")[:80]
        try:
            done = subprocess.run(
                command, cwd=cwd, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired as error:
            raise Missing(f"`{said}` did not end in {PATIENCE} seconds") from error
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise Missing(f"`{said}` exited with {done.returncode}: {lines[-1].replace(self.scratch, '…')[:240]}")

    def program(self, name, package):
        found = shutil.which(name)
        if not found:
            raise Missing(f"`{name}` is not installed (Debian package `{package}`; `ci/provision bench`)")
        return found

    def unique(self):
        self.counter += 1
        return f"b{self.counter}"

    def folder(self, name):
        """An empty directory of the scratch area."""
        path = os.path.join(self.scratch, name)
        os.mkdir(path)
        return path

    def tree(self, name, count):
        """A directory with `count` small files, a hundred to a folder."""
        root = self.folder(name)
        for number in range(count):
            folder = os.path.join(root, f"d{number // 100:03}")
            if number % 100 == 0:
                os.mkdir(folder)
            with open(os.path.join(folder, f"f{number % 100:02}.txt"), "w") as handle:
                handle.write(f"file {number}\n" * 4)
        return root

    def put_aside(self, path):
        """Takes a tree out of the way and removes it after everything is measured: ext4 looks for a free inode past all
        that were freed in the last minutes, so that what is made after a large removal is slow."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, os.path.join(self.aside, self.unique()))

    def settle(self):
        """Nobody's data is left to be written back while the next case is measured."""
        os.sync()

    def command(self, name, command, cwd, **more):
        return Case(name, lambda: self.start(command, cwd), **more)

    def remove(self, name, cwd):
        self.start([self.skep, "rm", "--discard", name], cwd)

    def at_end(self, action, *arguments):
        """To be done when the group has been measured, the last first."""
        self.ends.callback(action, *arguments)

    def end_group(self):
        """What a group left running or lying goes before the next one."""
        folder = os.path.join(self.home, "sandboxes")

        def remove(name):
            subprocess.run([self.skep, "rm", "--discard", name], env=self.environment, capture_output=True)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(remove, os.listdir(folder) if os.path.isdir(folder) else []))
        self.ends.close()

    def wipe(self):
        """Removes the scratch area. Many at once: where freeing a block waits for the disk, one by one takes minutes."""
        self.end_group()
        with open("/proc/self/mounts") as handle:
            mounts = [line.split()[1] for line in handle]
        for place in reversed([place for place in mounts if place.startswith(self.scratch + "/")]):
            # Engines bind their storage onto itself.
            subprocess.run(["umount", place], capture_output=True)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for folder, _, files in os.walk(self.scratch):
                pool.map(remove_file, [os.path.join(folder, file) for file in files])
        shutil.rmtree(self.scratch, ignore_errors=True)


def remove_file(path):
    with contextlib.suppress(OSError):
        os.unlink(path)
