"""What takes turns is run by some turn, once in so many commits, and nothing else is left out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

from tests import rotation
from tests.kernels.cpu import sanitize
from tests.rotated_cases import EACH
from tests.rotated_files import CLIENTS, WHOLE

ROOT = Path(__file__).parents[1]


class Item(NamedTuple):
    nodeid: str


NAMED = [*itertools.chain(*WHOLE), *EACH]
"""Files, folders, and single tests: FILE::TEST."""
ALWAYS = ("tests/engine/test_walk.py", "tests/system/test_chaos.py")


def cases_of(name: str) -> list[Item]:
    """Returns as many cases as there are turns."""
    form = "{}[{}]" if "::" in name else "{}::test_{}"
    return [Item(form.format(name, number)) for number in range(rotation.TURNS)]


CASES = {name: cases_of(name) for name in (*NAMED, *ALWAYS)}
ITEMS = [*itertools.chain(*CASES.values())]


def run_by(sample: int) -> set[Item]:
    return set(ITEMS) - set(rotation.others_turns(ITEMS, sample))


def test_turns_that_follow_each_other_run_everything() -> None:
    for first in (0, 1, 14_500):
        turns = [run_by(first + turn) for turn in range(rotation.TURNS)]
        assert set.union(*turns) == set(ITEMS)


def test_a_turn_has_about_its_share_and_what_takes_none() -> None:
    for turn in range(rotation.TURNS):
        found = run_by(turn)
        assert len(found) < len(ITEMS) / 3
        for name in ALWAYS:
            assert found.issuperset(CASES[name])
        for name in EACH:
            assert len(found.intersection(CASES[name])) == 1
        for number, files in enumerate(WHOLE):
            for file in files:
                run = found.intersection(CASES[file])
                assert run == (set(CASES[file]) if number == turn else set())


def test_a_case_keeps_its_turn_whatever_other_tests_there_are() -> None:
    alone = CASES[EACH[-1]]
    for turn in range(rotation.TURNS):
        left = set(alone).difference(rotation.others_turns(alone, turn))
        assert left == run_by(turn).intersection(alone)


def test_the_same_number_runs_the_same() -> None:
    assert run_by(7) == run_by(7) == run_by(7 + rotation.TURNS)


def test_clients_and_sanitizers_have_turns_of_their_own() -> None:
    clients = sorted((ROOT / CLIENTS).glob("test_*.py"))
    named = [file for files in WHOLE for file in files]
    assert all(str(file.relative_to(ROOT)) in named for file in clients)
    for first in (0, 14_503):
        turns = range(first, first + rotation.TURNS)
        assert {True, False} == {rotation.has_clients(turn) for turn in turns}
        sanitized = {rotation.sanitizers_turn(turn) for turn in turns}
        assert sanitized == {None, *range(len(sanitize.TURNS))}


def test_what_is_named_there_exists_and_is_named_once() -> None:
    for name in NAMED:
        file, _, test = name.partition("::")
        assert (ROOT / file).exists(), name
        assert not test or f"def {test}(" in (ROOT / file).read_text(), name
        others = [other for other in NAMED if name.startswith(other) and other != name]
        folders = [other for other in others if other.endswith("/")]
        assert others == (folders if name not in EACH else []), name
    assert len(NAMED) == len(set(NAMED))


def test_commits_are_counted() -> None:
    assert rotation.number_of_this_commit() >= 0
