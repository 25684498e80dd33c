"""Measuring: cases in turn, a private scratch area, and programs that may be missing."""

import os
import resource
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from typing import Callable


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
    # Processor time of the same runs, of every process that was waited for.
    worked: list = field(default_factory=list)
    problem: str = ""
    # A case that measures itself leaves its figure here.
    taken: float | None = None

    def median(self):
        return statistics.median(self.samples)

    def spread(self):
        ordered = sorted(self.samples)
        last = len(ordered) - 1
        return ordered[round(last * 0.1)], ordered[round(last * 0.9)]


@dataclass
class Ratio:
    """A line of the second table: a number made of figures, and what it should be.

    `worked` means processor time instead of time: what others do on the machine hardly changes it.

    `value` is asked with the medians, and again with each round's own figures for the spread: a busy
    moment hits both sides of a ratio, so that its spread is smaller than that of its parts."""

    name: str
    value: Callable[[dict], float]
    aim: float
    unit: str = "×"
    at_least: bool = False
    worked: bool = False

    def of(self, case):
        return case.worked if self.worked else case.samples

    def met(self, figure):
        return figure >= self.aim if self.at_least else figure <= self.aim

    def aim_text(self):
        return f"{'≥' if self.at_least else '≤'} {self.aim:g}{self.unit}"


def processor_time():
    """Milliseconds of this process and of its ended children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(part.ru_utime + part.ru_stime for part in (own, children)) * 1e3


def measure(cases, rounds):
    for number in range(rounds + 1):
        for case in cases:
            if case.problem:
                continue
            try:
                case.before()
                start, worked = time.perf_counter(), processor_time()
                case.run()
                taken, worked = (time.perf_counter() - start) * 1e3, processor_time() - worked
                taken = taken if case.taken is None else case.taken
                case.after()
            except Missing as error:
                case.problem = str(error)
                case.samples.clear()
                case.worked.clear()
                continue
            if number:
                case.samples.append(taken)
                case.worked.append(worked)


class Bench:
    """The scratch area, the state directory, and the ways to start a program."""

    def __init__(self, skep, scratch, options):
        self.skep, self.scratch, self.rounds = skep, scratch, max(1, options.rounds)
        self.huge, self.burst, self.idle = options.huge, options.burst, options.idle
        self.home = os.path.join(scratch, "state")
        os.mkdir(self.home, 0o700)
        # HOME is private too: git must not read the caller's configuration.
        self.environment = {**os.environ, "SKEP_HOME": self.home, "HOME": scratch, "LC_ALL": "C"}
        self.environment.pop("SKEP_HOST", None)
        # codex keeps helpers there, and refuses to in a directory for temporary files.
        self.environment["CODEX_HOME"] = os.path.join(os.environ.get("SKEP_BENCH_NODE", "/var/lib/skep-bench"), "codex")
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
