"""Properties (Hypothesis): which examples they try, and whether these met what they are about.

A plugin of pytest. Each commit tries other examples, by a seed that is printed; what failed is kept
in .hypothesis, and tried first.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests import met, met_table, rotation, thinning

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)


def add_options(parser: pytest.Parser) -> None:
    """Those of pytest's command line that are about properties."""
    parser.addoption(
        "--seed",
        type=int,
        metavar="N",
        help="of the examples of properties; without it, the number of the commit",
    )
    parser.addoption(
        "--met",
        action="store_true",
        help="tells how often the examples of each property met its case (tests/met.py)",
    )
    parser.addoption(
        "--record-met",
        action="store_true",
        help="writes that into tests/met.tsv, for the properties that ran",
    )
    parser.addoption(
        "--no-shrinking",
        action="store_true",
        help="the first example that fails will do (tests/mutants)",
    )


def load_profile(config: pytest.Config) -> None:
    """Before any module of tests is imported: they count their examples by it."""
    settings.register_profile(
        "penstock",
        deadline=None,
        database=DirectoryBasedExampleDatabase(rotation.ROOT / ".hypothesis/examples"),
        max_examples=thinning.part(100, 1 / 3),
        suppress_health_check=[HealthCheck.too_slow],
        phases=UNSHRUNK if config.getoption("--no-shrinking") else tuple(Phase),
    )
    settings.load_profile("penstock")


def seed_of(config: pytest.Config) -> int:
    """The number that the examples of properties begin with: other ones at each commit."""
    given: int | None = config.getoption("--seed")
    return rotation.number_of_this_commit() if given is None else given


def sow(items: Iterable[pytest.Item], config: pytest.Config) -> None:
    """Gives each property a seed of its own: what is added elsewhere changes nobody's examples.
    What failed before is in the database, and comes first."""
    if config.getoption("hypothesis_seed", None) is not None:
        return
    number = seed_of(config)
    for item in items:
        test = getattr(item, "obj", None)
        if hasattr(test, "hypothesis"):
            seed(zlib.crc32(f"{number} {item.nodeid.partition('[')[0]}".encode()))(test)


TRIES = 5
"""How often the examples of a property are drawn where none met its case. Chance alone leaves one
out now and then; five times is no chance."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A property whose examples never met its case has shown nothing."""
    met.take()
    done = yield
    found = Counts(met.take())
    for attempt in range(1, TRIES):
        if not found.unmet or not hasattr(pyfuncitem.obj, "hypothesis"):
            break
        seed(zlib.crc32(f"{attempt} {seed_of(pyfuncitem.config)} {pyfuncitem.name}".encode()))(
            pyfuncitem.obj
        )
        names = pyfuncitem._fixtureinfo.argnames
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
        found.add(met.take())
    cases = found.cases.items()
    pyfuncitem.user_properties += [("met", (case, *counts)) for case, counts in cases]
    for case in found.unmet:
        raise AssertionError(f"none of {found.cases[case][1]} examples met the case: {case}")
    return done


class Counts:
    """How often each case was met, and in how many examples."""

    def __init__(self, cases: dict[str, tuple[int, int]]) -> None:
        self.cases = cases

    @property
    def unmet(self) -> list[str]:
        return [case for case, (times, _) in self.cases.items() if not times]

    def add(self, more: dict[str, tuple[int, int]]) -> None:
        """Adds those of more examples."""
        for case, (times, examples) in more.items():
            before = self.cases.get(case, (0, 0))
            self.cases[case] = (before[0] + times, before[1] + examples)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    tells, records = config.getoption("--met"), config.getoption("--record-met")
    if not (tells or records):
        return
    found: list[met_table.Row] = []
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "met":
                found.append(met_table.Row(report.nodeid, *value))
    if tells:
        terminalreporter.section("how often properties met their cases")
        for row in found:
            terminalreporter.line(f"{row.met:>5} of {row.examples:>5}  {row.test}: {row.case}")
    if records:
        met_table.record(found)
