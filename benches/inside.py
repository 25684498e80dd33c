"""The group about work inside a sandbox against the same work outside."""

import os
import shutil
import subprocess

import peers
from measure import Case, Group, Missing, Ratio

STATUS_TIMES = 5
# Each leaves 20,000 files behind.
FRESH_ROUNDS = 5


def source_tree(bench, name):
    """One C file of 1,500 functions."""
    project = bench.folder(name)
    functions = "".join(f"int f{n}(int a) {{ return a * {n} + (a >> {n % 7}); }}\n" for n in range(1_500))
    with open(os.path.join(project, "unit.c"), "w") as handle:
        handle.write(functions)
    return project


def repository(bench, name):
    """Ten thousand files under git."""
    project = bench.tree(name, 10_000)
    peers.repository(bench, project)
    return project


class Work:
    """One kind of work: a tree and a script for it, and a copy of the tree for the other side. `fresh`: each round has a
    sandbox of its own, because the work leaves many changes behind."""

    def __init__(self, bench, name, aim, tree, script, fresh=False):
        self.bench, self.name, self.aim, self.script, self.fresh = bench, name, aim, script, fresh
        self.outside = tree
        self.project = shutil.copytree(tree, f"{tree}-inside", symlinks=True)
        self.sandbox = bench.unique()
        bench.start([bench.skep, "create", self.sandbox, "--net", "none"], self.project)

    def ready(self):
        if self.fresh:
            # Both sides begin in a directory of their own, spread over the disk (see `put_aside`). The last ones stay until the
            # group has ended: removing them would slow down the next.
            self.sandbox = self.bench.unique()
            self.bench.start([self.bench.skep, "create", self.sandbox, "--net", "none"], self.project)
            self.outside = shutil.copytree(self.project, os.path.join(self.bench.scratch, f"{self.sandbox}-outside"))
        self.bench.settle()

    def inside(self, script):
        self.bench.start([self.bench.skep, "exec", self.sandbox, "--", "sh", "-c", script], self.project)

    def cases(self):
        """Outside and inside, and an exec of nothing beside them in the same sandbox."""
        outside = lambda: self.bench.start(["sh", "-c", self.script], self.outside)
        nothing = lambda: self.bench.start(["sh", "-c", ":"], self.outside)
        rounds = {"most": FRESH_ROUNDS if self.fresh else 0}
        return [
            Case(f"{self.name}, outside", outside, self.ready, **rounds),
            Case(f"`sh -c :`, outside, beside {self.name}", nothing, drawn=False, **rounds),
            Case(f"`sh -c :`, inside, beside {self.name}", lambda: self.inside(":"), self.bench.settle, drawn=False, **rounds),
            Case(f"{self.name}, inside", lambda: self.inside(self.script), self.bench.settle, **rounds),
        ]

    def ratios(self):
        whole, start, entered, inside = (case.name for case in self.cases())

        def ratio(m):
            return (m[inside] - m[entered]) / (m[whole] - m[start])

        return [Ratio(f"{self.name}: inside ÷ outside", ratio, self.aim)]


class Overlay:
    """The same work on a bare overlay of the kernel, without a sandbox: what no copy-on-write view is faster than."""

    def __init__(self, work):
        self.bench, self.work = work.bench, work
        # Where the work was done outside, the view of the next one would have its results.
        self.lower = work.project if work.fresh else work.outside
        self.folder = None

    def run(self):
        """Milliseconds of the work alone, on a view that has been looked at once, as that of a sandbox has; on a new one
        where the work leaves many changes behind."""
        if os.geteuid() != 0:
            raise Missing("a bare overlay is mounted by root only")
        options = f"lowerdir={self.lower},upperdir=upper,workdir=work,volatile"
        first = ":" if self.work.fresh else self.work.script
        script = f"{first} >/dev/null; date +%s%N; {self.work.script} >/dev/null; date +%s%N"
        whole = f"mount -t overlay overlay -o {options} view && cd view && {{ {script}; }}"
        command = ["unshare", "--mount", "sh", "-c", whole]
        done = subprocess.run(command, cwd=self.folder, env=self.bench.environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Missing((done.stderr.strip().splitlines() or ["no message"])[-1][:160])
        began, ended = map(int, done.stdout.split())
        return (ended - began) / 1e6

    def ready(self):
        # New each time: the kernel leaves a mark in the work directory of a volatile overlay.
        self.folder = self.bench.folder(f"{self.bench.unique()}-overlay")
        for name in ("upper", "work", "view"):
            os.mkdir(os.path.join(self.folder, name))
        self.bench.settle()

    def cases(self):
        rounds = {"most": FRESH_ROUNDS if self.work.fresh else 0}
        return [Case(f"{self.work.name}, bare overlay", self.run, self.ready, **rounds)]

    def ratios(self):
        (overlay,) = (case.name for case in self.cases())
        outside, shell, *_ = (case.name for case in self.work.cases())

        def ratio(m):
            return m[overlay] / (m[outside] - m[shell])

        return [Ratio(f"{self.work.name}: bare overlay ÷ outside", ratio)]


def inside_group(bench):
    """A compile, `git status` of 10,000 files (five times) and an untar of 10,000 files, inside against outside. Each has a
    tree and a sandbox of its own (the untar a new one each round), and a copy of the tree outside; data is synced before
    each. The ratio is of the work alone: from either side the start of a shell that does nothing is taken off, which
    inside is an exec. The last two also on a bare overlay of the kernel: what no such view is faster than."""
    bench.program("gcc", "gcc")
    files = bench.tree("untar-source", 10_000)
    untar = bench.folder("untar")
    bench.start(["tar", "-C", files, "-cf", os.path.join(untar, "files.tar"), "."], untar)
    works = [
        Work(bench, "compile", 1.03, source_tree(bench, "compile"), "gcc -O2 -c unit.c -o unit.o"),
        Work(bench, f"{STATUS_TIMES} × `git status`", 1.15, repository(bench, "status"),
             f"for i in $(seq {STATUS_TIMES}); do git status --porcelain; done"),
        Work(bench, "untar", 1.15, untar, "mkdir out && tar -C out -xf files.tar", fresh=True),
    ]
    works.extend([Overlay(works[1]), Overlay(works[2])])
    cases = [case for work in works for case in work.cases()]
    return Group(cases, [ratio for work in works for ratio in work.ratios()], max(5, bench.rounds // 4), chart=True)
