"""What takes turns is run by some turn, once in so many commits, and nothing else is left out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

from tests import rotation
from tests.kernels.cpu import sanitize

ROOT = Path(__file__).parents[1]


class Item(NamedTuple):
    nodeid: str


FILES = [*itertools.chain(*rotation.WHOLE), *rotation.EACH]
ITEMS = [
    Item(f"{file}::test_{n}")
    for file in [*FILES, "tests/engine/test_walk.py", "tests/system/test_recovery.py"]
    for n in range(5)
]


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
        for file in ("tests/engine/test_walk.py", "tests/system/test_recovery.py"):
            assert sum(item.nodeid.startswith(file) for item in found) == 5
        for file in rotation.EACH:
            assert sum(item.nodeid.startswith(f"{file}::") for item in found) == 1
        for number, files in enumerate(rotation.WHOLE):
            for file in files:
                run = sum(item.nodeid.startswith(file) for item in found)
                assert run == (5 if number == turn else 0)


def test_the_same_number_runs_the_same() -> None:
    assert run_by(7) == run_by(7) == run_by(7 + rotation.TURNS)


def test_clients_and_sanitizers_have_turns_of_their_own() -> None:
    clients = sorted((ROOT / rotation.CLIENTS).glob("test_*.py"))
    named = [file for files in rotation.WHOLE for file in files]
    assert all(str(file.relative_to(ROOT)) in named for file in clients)
    for first in (0, 14_503):
        turns = range(first, first + rotation.TURNS)
        assert {True, False} == {rotation.has_clients(turn) for turn in turns}
        sanitized = {rotation.sanitizers_turn(turn) for turn in turns}
        assert sanitized == {None, *range(len(sanitize.TURNS))}


def test_what_is_named_there_exists_and_is_named_once() -> None:
    assert [file for file in FILES if not (ROOT / file).exists()] == []
    assert len(FILES) == len(set(FILES))


def test_commits_are_counted() -> None:
    assert rotation.number_of_this_commit() >= 0
