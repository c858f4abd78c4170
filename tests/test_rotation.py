"""What takes turns is run by some turn, once in so many commits, and nothing else is left out."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import rotation, steps
from tests.kernels.cpu import sanitize
from tests.rotated_always import ALWAYS as NEVER
from tests.rotated_always import FIRST
from tests.rotated_cases import EACH
from tests.rotated_files import CLIENTS, WHOLE

ROOT = Path(__file__).parents[1]


class Item(NamedTuple):
    nodeid: str


NAMED = [*itertools.chain(*WHOLE), *EACH]
"""Files, folders, and single tests: FILE::TEST."""
ALWAYS = ("tests/engine/test_walk.py", "tests/system/test_chaos.py")
SOMETIMES = [name for name in NAMED if not name.startswith((*FIRST, *NEVER))]
"""Of which nothing runs always."""


def cases_of(name: str) -> list[Item]:
    """Returns as many cases as there are turns."""
    form = "{}[{}]" if "::" in name else "{}::test_a_{}"
    return [Item(form.format(name, number)) for number in range(rotation.TURNS)]


CASES = {name: cases_of(name) for name in (*NAMED, *ALWAYS)}
ITEMS = [*itertools.chain(*CASES.values())]


def run_by(turns: rotation.Turns) -> set[Item]:
    return set(ITEMS) - set(rotation.others_turns(ITEMS, turns))


def test_six_landings_in_a_row_run_everything() -> None:
    for first in (0, 1, 14_500):
        landings = range(first, first + rotation.LANDINGS)
        found = [run_by(rotation.turns_of_landing(number)) for number in landings]
        assert set.union(*found) == set(ITEMS)


def test_what_is_behind_long_runs_once_in_36_landings_in_a_row() -> None:
    items, found = ITEMS[::11], []
    for number in range(14_501, 14_501 + rotation.LANDINGS * rotation.ROUNDS):
        runs = [*rotation.long_cases(items, number)]
        others = rotation.others_files(rotation.turns_of_landing(number))
        assert not any(each.nodeid.startswith(others) for each in runs)
        found += runs
    assert sorted(found) == sorted(items)


def test_so_do_twelve_commits() -> None:
    found = [run_by(rotation.turn_of_commit(number)) for number in range(31, 31 + rotation.TURNS)]
    assert set.union(*found) == set(ITEMS)


def test_a_turn_has_about_its_share_and_what_takes_none() -> None:
    always = run_by(())
    for turn in range(rotation.TURNS):
        found = run_by({turn})
        assert len(found - always) < len(ITEMS) / 3
        for name in ALWAYS:
            assert found.issuperset(CASES[name])
        for name in EACH:
            if name in SOMETIMES and not name.startswith(WHOLE[turn]):
                assert len(found.intersection(CASES[name])) == 1
        for number, files in enumerate(WHOLE):
            for file in files:
                if file in SOMETIMES:
                    run = found.intersection(CASES[file])
                    assert run == (set(CASES[file]) if number == turn else set())


def test_what_takes_no_turns_runs_in_each() -> None:
    items = [Item(f"{name}::test_a[{case}]") for name in NEVER for case in "ab" if "::" not in name]
    firsts = [
        (
            name
            if "::" in name
            else f"{name.rstrip('/')}{'' if name.endswith('.py') else '/t.py'}::test_a"
        )
        for name in FIRST
    ]
    later = [Item(f"{test}[{case}]") for test in dict.fromkeys(firsts) for case in "ab"]
    left_out = set(rotation.takes_turns([*items, *later]))
    assert not left_out.intersection(items)
    assert not any(item.nodeid.endswith("[a]") for item in left_out)
    for file in {name.partition("::")[0] for name in (*FIRST, *NEVER)}:
        assert file not in rotation.left_out_files(()), "it must be collected"


def test_a_case_keeps_its_turn_whatever_other_tests_there_are() -> None:
    alone = CASES[SOMETIMES[-1]]
    for turn in range(rotation.TURNS):
        left = set(alone).difference(rotation.others_turns(alone, {turn}))
        assert left == run_by({turn}).intersection(alone)


def test_clients_and_sanitizers_have_turns_of_their_own() -> None:
    clients = sorted((ROOT / CLIENTS).glob("test_*.py"))
    named = [file for files in WHOLE for file in files]
    assert all(str(file.relative_to(ROOT)) in named for file in clients)
    landings = [rotation.turns_of_landing(number) for number in range(rotation.LANDINGS)]
    assert {True, False} == {rotation.has_clients(turns) for turns in landings}
    own = [turn for turns in landings for turn in rotation.sanitizers_turns(turns)]
    assert sorted(own) == [*range(len(sanitize.TURNS))]
    assert max(len(rotation.sanitizers_turns(turns)) for turns in landings) == 1, "minutes each"


def test_what_is_named_there_exists_and_is_named_once() -> None:
    for name in (*NAMED, *FIRST, *NEVER):
        file, _, test = name.partition("[")[0].partition("::")
        assert (ROOT / file).exists(), name
        assert not test or f"def {test}(" in (ROOT / file).read_text(), name
    for name in NAMED:
        others = [other for other in NAMED if name.startswith(other) and other != name]
        folders = [other for other in others if other.endswith("/")]
        assert others == (folders if name not in EACH else []), name
    assert len(NAMED) == len(set(NAMED))


def git(folder: Path, *arguments: str) -> str:
    named = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_commits_are_counted_where_git_knows_them(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    assert rotation.number_of_this_commit(whole) == 0
    git(whole, "init", "-q")
    for number in range(3):
        git(whole, "commit", "-q", "--allow-empty", "-m", f"{number}")
    assert rotation.number_of_this_commit(whole) == 3
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{whole}", "shallow")
    assert rotation.number_of_this_commit(tmp_path / "shallow") == 1


def test_ci_asks_the_file_and_no_history() -> None:
    assert "exec make ci" in (ROOT / ".ci/run").read_text()
    option, turns = steps.turns_of("ci")
    number = rotation.number_of_this_landing()
    assert option == f"--landing={number}"
    assert turns == rotation.turns_of_landing(number)
    assert len(turns) == rotation.TURNS / rotation.LANDINGS


MOST_COMMITS = 150
"""Since the last landing was counted: more are none of one landing."""


def test_landings_are_counted() -> None:
    """`make landing`. Else the same turns run again and again."""
    try:
        shallow = git(ROOT, "rev-parse", "--is-shallow-repository").strip() == "true"
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no clone: git doesn't know these commits")
    if shallow:
        pytest.skip("a shallow clone doesn't know which commit changed a file")
    last = git(ROOT, "log", "-1", "--format=%H", "--", str(rotation.LANDING)).strip()
    if last:
        assert int(git(ROOT, "rev-list", "--count", f"{last}..HEAD")) <= MOST_COMMITS


def test_a_run_says_what_it_left_out() -> None:
    assert "10 of 12 turns" in steps.left_out("ci", [])
    assert "11 of 12 turns" in steps.left_out("test", [])
    assert steps.left_out("check", []).startswith("what is slow")
    assert steps.left_out("test", ["--long"]).startswith("nothing")
    assert "is named" in steps.left_out("test", ["tests/engine"])
    assert "don't choose" in steps.left_out("test", ["-k", "port"])
