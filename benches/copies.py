"""Groups about a copy of a project: does making one follow its size, and what else makes one."""

import contextlib
import os

import peers
from measure import Case, Group, Missing, Ratio
from start import floor_case

SMALL, BIG, HUGE = 10, 30_000, 300_000


def create_case(bench, name, project):
    state = {}

    def before():
        state["name"] = bench.unique()
        bench.settle()

    return Case(
        name,
        lambda: bench.start([bench.skep, "create", state["name"]], project),
        before,
        lambda: bench.remove(state["name"], project),
    )


def big_tree(bench):
    """The project of 30,000 files that several groups use; none of them changes it. A repository where there is git."""
    path = os.path.join(bench.scratch, "big")
    if not os.path.isdir(path):
        bench.tree("big", BIG)
        with contextlib.suppress(Missing):
            peers.repository(bench, path)
    return path


def huge_tree(bench):
    """300,000 files without content: no block is freed when they go, which takes a millisecond each on some disks."""
    root = bench.folder("huge")
    for number in range(HUGE):
        folder = os.path.join(root, f"d{number // 100:04}")
        if number % 100 == 0:
            os.mkdir(folder)
        os.close(os.open(os.path.join(folder, f"f{number % 100:02}"), os.O_CREAT | os.O_WRONLY, 0o644))
    return root


def create_group(bench):
    """`skep create` on projects of several sizes: does it follow the size? Data is synced before each, and each sandbox is
    removed outside the measured time. Each directory of the project is looked at once, because a file to hide may have come
    into it: what the bare calls for that take stands beside it."""
    trees = {SMALL: bench.tree("small", SMALL), BIG: big_tree(bench)} | ({HUGE: huge_tree(bench)} if bench.huge else {})
    names = {count: f"`skep create`, {count:,} files" for count in trees}
    cases = [create_case(bench, names[count], tree) for count, tree in trees.items()]
    looks = {count: f"floor: a look at each directory, {count:,} files" for count in trees}
    cases += [floor_case(bench, looks[count], "directories", tree) for count, tree in trees.items()]
    ratios = []
    for count in list(trees)[1:]:
        name = f"create on {count:,} ÷ on {SMALL} files"
        ratios.append(Ratio(name, lambda m, c=count: m[names[c]] / m[names[SMALL]], 1.1))
        ratios.append(Ratio(f"{name}, processor", lambda m, c=count: m[names[c]] / m[names[SMALL]], worked=True))
    return Group(cases, ratios, bench.rounds, chart=True)


def size_group(bench):
    """`skep create` on 30,000 files against other ways to a copy of them. Data is synced before each. What was copied is
    renamed out of the way and removed after the whole run: on ext4 a copy that follows the removal of another is up to ten
    times slower, which would flatter skep. Copies with shared
    extents are made on an XFS in a file where the scratch area has none."""
    project = big_tree(bench)
    create = create_case(bench, f"`skep create`, {BIG:,} files", project)
    copies = peers.copiers(bench, project)
    worktree, plain, shared = (case.name for case in copies)
    ratios = [
        Ratio("git worktree add ÷ create", lambda m: m[worktree] / m[create.name], 1000.0, at_least=True),
        Ratio("cp -a ÷ create", lambda m: m[plain] / m[create.name]),
        Ratio("cp -a --reflink ÷ create", lambda m: m[shared] / m[create.name]),
    ]
    return Group([create, *copies], ratios, 5, chart=True)
