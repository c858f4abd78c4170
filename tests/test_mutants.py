"""The list of faults fits the sources, and the runner puts each in and takes it out again."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.mutants import results
from tests.mutants.__main__ import chosen_of
from tests.mutants.mutant import Mutant, listed
from tests.mutants.trial import FOUND, PATIENCE, Copy, Found, OutOfTime

ROOT = Path(__file__).parents[1]
MUTANTS = listed()


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= 150
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("area", sorted({mutant.area for mutant in MUTANTS}))
def test_each_fits_its_file(area: str) -> None:
    """Who changes the place of a fault says in `faults` what the same fault is there now."""
    for mutant in MUTANTS:
        if mutant.area != area:
            continue
        changed = mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
        assert mutant.new != mutant.old, mutant.name
        if mutant.file.endswith(".py"):
            ast.parse(changed)


@pytest.mark.parametrize("area", sorted({mutant.area for mutant in MUTANTS}))
def test_the_tests_that_must_fail_exist(area: str) -> None:
    for mutant in MUTANTS:
        for test in mutant.tests if mutant.area == area else ():
            file, _, name = test.partition("::")
            path = ROOT / file
            assert path.exists(), f"{mutant.name}: {test}"
            if name:
                definition = rf"def {name.partition('[')[0]}\("
                assert re.search(definition, path.read_text(encoding="utf-8")), test


def test_results_are_of_faults_that_are_listed() -> None:
    rows = results.recorded()
    assert rows.keys() <= {mutant.name for mutant in MUTANTS}
    assert {row.verdict for row in rows.values()} <= {*results.VERDICTS}


LEAST_AT_ONCE = 0.95


def test_nearly_all_were_tried_and_found_at_once() -> None:
    """Those that no test can fail for count neither way, and none of them has been found."""
    rows = results.recorded()
    at_once = {name for name, row in rows.items() if row.verdict == "at once"}
    found = {name for name, row in rows.items() if row.verdict in FOUND}
    for mutant in MUTANTS:
        assert not (mutant.equivalent and mutant.name in found), f"{mutant.name} isn't equivalent"
    wanted = {mutant.name for mutant in MUTANTS if not mutant.equivalent}
    late = sorted(wanted - at_once)
    assert len(late) <= (1 - LEAST_AT_ONCE) * len(wanted), late


MUTANT = Mutant("a", "area", "a.py", "1 + 1", "1 - 1", ("tests/test_a.py::test_it",), "")


class Scripted(Copy):
    """A tree of one file, and tests that find the fault or don't."""

    def __init__(self, folder: Path, finds: dict[tuple[tuple[str, ...], bool], str]) -> None:
        self.folder = folder
        self.finds = finds
        self.seen: list[str] = []
        (folder / "a.py").write_text("TWO = 1 + 1\n")

    def run(
        self, tests: Sequence[str], *, every_landing: bool, seconds: float = PATIENCE
    ) -> str | None:
        self.seen.append((self.folder / "a.py").read_text())
        return self.finds.get((tuple(tests), every_landing))


@pytest.mark.parametrize(
    ("finds", "found"),
    [
        ({(MUTANT.tests, True): "t"}, Found("at once", "t")),
        ({(MUTANT.tests, False): "t"}, Found("in turns", "t")),
        ({(("tests",), True): "t"}, Found("at once", "t")),
        ({(("tests",), False): "t"}, Found("in turns", "t")),
        ({}, Found("survived")),
    ],
)
def test_tests_that_run_always_come_first_and_then_the_folder(
    tmp_path: Path, finds: dict[tuple[tuple[str, ...], bool], str], found: Found
) -> None:
    copy = Scripted(tmp_path, finds)
    assert copy.found(MUTANT, folders=True) == found
    assert set(copy.seen) == {"TWO = 1 - 1\n"}
    assert (tmp_path / "a.py").read_text() == "TWO = 1 + 1\n"


class Endless(Scripted):
    """Its tests take all the time that they may."""

    def run(
        self, tests: Sequence[str], *, every_landing: bool, seconds: float = PATIENCE
    ) -> str | None:
        self.seen.append(f"{tests[0]} {seconds:.0f}")
        raise OutOfTime("no end")


def test_tests_without_end_find_nothing_and_hold_up_nobody(tmp_path: Path) -> None:
    copy = Endless(tmp_path, {})
    found = copy.found(MUTANT, folders=True, seconds=7)
    assert found == Found("out of time", "(no end)")
    assert not found.is_found
    assert copy.seen == [f"{MUTANT.tests[0]} 7"]
    assert (tmp_path / "a.py").read_text() == "TWO = 1 + 1\n"


SLEEPER = """
import subprocess, sys, time

def test_it():
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("started.txt", "w") as file:
        file.write(str(started.pid))
    time.sleep(600)
"""


def test_a_run_out_of_time_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(SLEEPER)
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--no-shrinking', action='store_true')\n"
    )
    copy, started = Scripted(tmp_path, {}), tmp_path / "started.txt"
    seconds = 2.0  # More where it was not enough to begin.
    while not (started.exists() and started.read_text()):
        with pytest.raises(OutOfTime, match=r"test_a\.py: no end in"):
            Copy.run(copy, ["test_a.py"], every_landing=False, seconds=seconds)
        seconds *= 2
    while _runs(int(started.read_text())):
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_was_compiled_of_a_file_goes_with_each_change(tmp_path: Path) -> None:
    """The same length within a second is the same to Python."""
    copy = Scripted(tmp_path, {})
    compiled = tmp_path / "__pycache__" / "a.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"old")
    copy.found(MUTANT, folders=False)
    assert not compiled.exists()


@pytest.mark.parametrize("source", ["TWO = 2\n", "TWO = 1 + 1 + 1 + 1\n"])
def test_a_fault_whose_place_is_gone_or_not_alone_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match=r"times in a\.py, not once"):
        MUTANT.applied(source)


def test_what_is_chosen() -> None:
    def chosen(*areas: str, names: Sequence[str] = (), built: bool = False) -> set[str]:
        others = [
            Mutant("built", "area", "a.cpp", "1", "2", MUTANT.tests, ""),
            Mutant("equal", "area", "a.py", "1", "2", MUTANT.tests, "nothing reads it"),
            Mutant("other", "other", "a.py", "1", "2", MUTANT.tests, ""),
        ]
        return {m.name for m in chosen_of([MUTANT, *others], areas, names, built=built)}

    assert chosen() == {"a", "other"}
    assert chosen("area") == {"a"}
    assert chosen("area", built=True) == {"a", "built"}
    assert chosen(names=["equal", "built"]) == {"equal", "built"}


def test_the_table_counts_by_area_and_names_what_was_not_found_at_once() -> None:
    others = [
        Mutant("b", "area", "a.py", "1", "2", MUTANT.tests, ""),
        Mutant("c", "other", "a.py", "1", "2", MUTANT.tests, "nothing reads it"),
        Mutant("d", "area", "a.py", "1", "2", MUTANT.tests, ""),
    ]
    found = {"a": Found("at once", "t"), "b": Found("survived"), "c": Found("survived")}
    found["d"] = Found("out of time", "(no end)")
    lines = results.table([MUTANT, *others], found).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["area", "1", "0", "1", "1", "0"],
        ["other", "0", "0", "0", "0", "1"],
        ["all", "1", "0", "1", "1", "1"],
    ]
    assert lines[4:] == ["survived: area b", "out of time: area d"]
