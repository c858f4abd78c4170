"""What takes long takes turns: `make test` runs a twelfth of it, by the number of the commit, so
that any twelve commits in a row run all of it. pytest alone, and --long, leave none out."""

from __future__ import annotations

import subprocess
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from tests.rotated_cases import EACH
from tests.rotated_files import CLIENTS, WHOLE

ROOT = Path(__file__).parents[1]

TURNS = len(WHOLE)
SANITIZED = (0, 6)
"""Turns in which the sanitizers run: first with the instruction sets of their own first turn, then
with those of the second (tests/kernels/cpu/sanitize.py)."""


class Case(Protocol):
    """A test's case, as pytest collects it."""

    @property
    def nodeid(self) -> str: ...


AnyCase = TypeVar("AnyCase", bound=Case)


def number_of_this_commit() -> int:
    """How many there have been; 0 where that isn't known."""
    done = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return int(done.stdout) if done.returncode == 0 else 0


def has_clients(sample: int) -> bool:
    """Whether tests of other people's clients run in the turn."""
    return any(name.startswith(CLIENTS) for name in WHOLE[sample % TURNS])


def sanitizers_turn(sample: int) -> int | None:
    """The turn of the sanitizers' own that runs in this one; None where they don't."""
    turn = sample % TURNS
    return SANITIZED.index(turn) if turn in SANITIZED else None


def others_files(sample: int) -> tuple[str, ...]:
    """The files whose turn it isn't."""
    turn = sample % TURNS
    return tuple(name for at, names in enumerate(WHOLE) if at != turn for name in names)


def others_turns(items: Iterable[AnyCase], sample: int) -> Iterator[AnyCase]:
    """The cases whose turn it isn't. Those of an entry of EACH are dealt out one by one, beginning
    with a turn that depends on its name: what is added elsewhere changes no other case's turn."""
    turn = sample % TURNS
    files = others_files(sample)
    count = Counter[str]()
    for item in items:
        name = item.nodeid  # pytest puts it together whenever it is asked for
        if name.startswith(files):
            yield item
        elif name.startswith(EACH) and not name.startswith(WHOLE[turn]):
            entry = next(entry for entry in EACH if name.startswith(entry))
            if (zlib.crc32(entry.encode()) + count[entry]) % TURNS != turn:
                yield item
            count[entry] += 1


def takes_turns(items: Iterable[AnyCase]) -> Iterator[AnyCase]:
    """The cases that don't run at every landing."""
    files = tuple(name for names in WHOLE for name in names)
    for item in items:
        if item.nodeid.startswith((*files, *EACH)):
            yield item
