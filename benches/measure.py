"""Measuring: groups of cases in turn, and figures made of them."""

import resource
import statistics
import time
from dataclasses import dataclass, field
from typing import Callable


class Missing(Exception):
    """A program or a command is not there; the text says what to do."""


def told(error):
    """What kept something from being measured."""
    return str(error) if isinstance(error, Missing) else f"{type(error).__name__}: {error}"


@dataclass
class Case:
    """One thing to measure. `before` and `after` run outside the measurement, each round.

    What `run` returns is its figure, or a list of several; if it returns nothing it is timed, and the processor time of
    every process that was waited for is taken too."""

    name: str
    run: Callable[[], object]
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    unit: str = "ms"
    # More is better.
    more: bool = False
    # At most this many rounds, the first of them not thrown away: for what takes seconds.
    most: int = 0
    # Whether a chart shows it.
    drawn: bool = True
    samples: list = field(default_factory=list)
    worked: list = field(default_factory=list)
    problem: str = ""

    def median(self):
        return statistics.median(self.samples)

    def best(self):
        return (max if self.more else min)(self.samples)

    def spread(self):
        return spread(self.samples)


@dataclass
class Ratio:
    """A line of the second table: a number made of figures, and what it should be; no aim, no verdict.

    `value` is asked with the medians, and again with each round's own figures for the spread: a busy moment hits both
    sides of a ratio, so that its spread is smaller than that of its parts. `worked` means processor time instead of time:
    what others do on the machine hardly changes it."""

    name: str
    value: Callable[[dict], float]
    aim: float | None = None
    unit: str = "×"
    at_least: bool = False
    worked: bool = False

    def of(self, case):
        return case.worked if self.worked else case.samples

    def met(self, figure):
        return self.aim is None or (figure >= self.aim if self.at_least else figure <= self.aim)

    def aim_text(self):
        space = "" if self.unit == "×" else " "
        return "" if self.aim is None else f"{'≥' if self.at_least else '≤'} {self.aim:g}{space}{self.unit}"

    def measured(self, cases):
        """The figure of the medians, or nothing."""
        try:
            return self.value({case.name: statistics.median(self.of(case)) for case in cases if self.of(case)})
        except (KeyError, ZeroDivisionError):
            return None

    def each(self, cases):
        """The figure of each round in which all of its parts were measured."""
        values = []
        for number in range(max((len(self.of(case)) for case in cases), default=0)):
            try:
                values.append(self.value({c.name: self.of(c)[number] for c in cases if len(self.of(c)) > number}))
            except (KeyError, ZeroDivisionError):
                break
        return values


@dataclass
class Group:
    """What is measured together. `chart`: a picture of it is worth keeping."""

    cases: list
    ratios: list
    rounds: int
    chart: bool = False


def spread(values):
    """The 10th and the 90th percentile."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[round(last * 0.1)], ordered[round(last * 0.9)]


def processor_time():
    """Milliseconds of this process and of its ended children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(part.ru_utime + part.ru_stime for part in (own, children)) * 1e3


def once(case, kept):
    case.before()
    start, worked = time.perf_counter(), processor_time()
    figure = case.run()
    taken, worked = (time.perf_counter() - start) * 1e3, processor_time() - worked
    case.after()
    if kept and figure is None:
        case.samples.append(taken)
        case.worked.append(worked)
    elif kept:
        case.samples += figure if isinstance(figure, list) else [figure]


def measure(group):
    """Every case once, in turn, round after round; the first round is thrown away."""
    for number in range(group.rounds + 1):
        for case in group.cases:
            if case.problem or (case.most and not 0 < number <= case.most):
                continue
            try:
                once(case, number > 0)
            except Exception as error:  # one case that fails must not lose the others
                case.problem = told(error)
                case.samples.clear()
                case.worked.clear()


def together(run, *cases):
    """Cases whose figures one run takes: `run` returns a figure for each, in their order."""
    taken = []

    def first():
        taken[:] = run()
        return taken[0]

    def later(number):
        def pick():
            if len(taken) <= number:
                raise Missing(f"{cases[0].name} was not measured: {cases[0].problem}")
            return taken[number]

        return pick

    for number, case in enumerate(cases):
        case.run = later(number) if number else first
    return list(cases)
