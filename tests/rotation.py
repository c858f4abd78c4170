"""What takes long takes turns.

There are twelve turns. `make test` runs one of them, by the number of the commit; a landing (`make
ci`) runs two, by the number in landing.txt, so that any six landings in a row run all of it. That
is a file because a shallow clone knows no number of commits, and a landing may bring any number.
pytest alone, and --long, leave none out. What is behind --long has a longer way round: each of its
cases runs in one of 36 landings in a row.
"""

from __future__ import annotations

import subprocess
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from tests.rotated_always import ALWAYS, FIRST
from tests.rotated_cases import EACH
from tests.rotated_files import CLIENTS, WHOLE

ROOT = Path(__file__).parents[1]
LANDING = Path(__file__).with_name("landing.txt")

TURNS = len(WHOLE)
LANDINGS = 6
"""After so many landings all turns have been run."""
ROUNDS = 6
"""After so many times LANDINGS, what is behind --long has been run, too."""
SANITIZED = (0, 3)
"""Turns in which the sanitizers run: first with the instruction sets of their own first turn, then
with those of the second (tests/kernels/cpu/sanitize.py)."""

Turns = Collection[int]


class Case(Protocol):
    """A test's case, as pytest collects it."""

    @property
    def nodeid(self) -> str: ...


AnyCase = TypeVar("AnyCase", bound=Case)


def number_of_this_commit(folder: Path = ROOT) -> int:
    """How many there have been; 0 where that isn't known."""
    done = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return int(done.stdout) if done.returncode == 0 else 0


def number_of_this_landing() -> int:
    """The number that is committed."""
    return int(LANDING.read_text(encoding="utf-8"))


def turn_of_commit(number: int) -> Turns:
    """The turn that `make test` runs at a commit."""
    return {number % TURNS}


def turns_of_landing(number: int) -> Turns:
    """The turns that a landing runs."""
    return {*range(number % LANDINGS, TURNS, LANDINGS)}


def has_clients(turns: Turns) -> bool:
    """Whether tests of other people's clients run in the turns."""
    return any(name.startswith(CLIENTS) for turn in turns for name in WHOLE[turn])


def sanitizers_turns(turns: Turns) -> list[int]:
    """The turns of the sanitizers' own that run in these."""
    return [own for own, turn in enumerate(SANITIZED) if turn in turns]


def left_out_files(turns: Turns) -> tuple[str, ...]:
    """The files of which nothing runs in the turns."""
    kept = tuple(name.partition("::")[0] for name in (*FIRST, *ALWAYS))
    return tuple(name for name in others_files(turns) if name not in kept)


def others_files(turns: Turns) -> tuple[str, ...]:
    """The files that take other turns as a whole, but for what runs at every landing."""
    return tuple(name for at, names in enumerate(WHOLE) if at not in turns for name in names)


def others_turns(items: Iterable[AnyCase], turns: Turns) -> Iterator[AnyCase]:
    """The cases that run in other turns only. Those of an entry of EACH are dealt out one by one,
    beginning with a turn that depends on its name: what is added elsewhere changes no other case's
    turn."""
    files = others_files(turns)
    whole = tuple(name for turn in turns for name in WHOLE[turn])
    count, tests = Counter[str](), set[str]()
    for item in items:
        name = item.nodeid  # pytest puts it together whenever it is asked for
        own = name.startswith(files)
        if not own and name.startswith(EACH) and not name.startswith(whole):
            entry = next(entry for entry in EACH if name.startswith(entry))
            own = (zlib.crc32(entry.encode()) + count[entry]) % TURNS not in turns
            count[entry] += 1
        if not _runs_always(name, tests) and own:
            yield item


def long_cases(items: Iterable[AnyCase], landing: int) -> Iterator[AnyCase]:
    """Of cases that are behind --long, yields those that a landing runs. A case of a file that
    takes turns has one of ROUNDS in a row of these."""
    others, whole = others_files(turns_of_landing(landing)), others_files(())
    for item in items:
        draw = zlib.crc32(item.nodeid.encode())
        if item.nodeid.startswith(whole):
            runs = landing // LANDINGS % ROUNDS == draw % ROUNDS
            runs = runs and not item.nodeid.startswith(others)
        else:
            runs = (landing - draw) % (LANDINGS * ROUNDS) == 0
        if runs:
            yield item


def takes_turns(items: Iterable[AnyCase]) -> Iterator[AnyCase]:
    """The cases that don't run at every landing."""
    return others_turns(items, ())


def _runs_always(name: str, tests: set[str]) -> bool:
    """Whether a case takes no turns. tests: those of which a case came before."""
    test = name.partition("[")[0]
    first = test not in tests
    tests.add(test)
    return name.startswith(ALWAYS) or (first and name.startswith(FIRST))


def left_out(turns: Turns) -> str:
    """What doesn't run in the turns, in words."""
    files = len(left_out_files(turns))
    some = "nothing" if len(turns) == TURNS else f"{TURNS - len(turns)} of {TURNS} turns"
    return (
        f"{some}: {files} files, of {len(EACH)} others most cases, and most of what --long adds "
        "(tests/README.md)"
    )
