"""What random histories are put through: they are walked, replayed, and restored half-way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from penstock.config.settings import RecordSettings
from penstock_engine.core import EngineCore
from penstock_engine.record.framing import log_files
from penstock_engine.record.recorder import recording
from penstock_engine.record.replay import replay
from penstock_engine.record.restoring import restore
from penstock_engine.record.snapshot import snapshot
from tests.engine.harness import Harness
from tests.engine.record.twins import Twins
from tests.engine.walked_harness import Choices, Seeded, make_harness
from tests.engine.walker import Walker


class History(Protocol):
    """A walker, or several that belong together. h: a harness whose core is recorded."""

    @property
    def h(self) -> Harness: ...
    def connect(self) -> object: ...
    def walk(self) -> None: ...
    def end(self) -> None: ...
    def outcome(self) -> Counter[str]: ...


AnyHistory = TypeVar("AnyHistory", bound=History)


def walked(walker: AnyHistory, operations: int) -> AnyHistory:
    """After so many, the first of which connects a front end."""
    walker.connect()
    for _ in range(operations):
        walker.walk()
    return walker


def seeded_walk(seed: int, operations: int) -> Walker:
    """A walker of plain requests after so many."""
    choose = Seeded(seed)
    return walked(Walker(make_harness(choose), choose), operations)


def walked_beside(seed: int, act: Callable[[Harness, Choices], None], operations: int) -> Walker:
    """After so many random operations, behind each of which came what `act` does."""
    choose = Seeded(seed)
    walker = Walker(make_harness(choose), choose)
    walker.connect()
    for _ in range(operations):
        walker.walk()
        act(walker.h, choose)
    return walker


@contextmanager
def recorded(h: Harness, folder: Path) -> Iterator[None]:
    """The core is recorded in the block, from its beginning on."""
    with recording(h.core, RecordSettings(record_dir=str(folder))) as core:
        h.core = core
        yield


def replayed(folder: Path) -> int:
    """The one recording in the folder is replayed, and decides as the core did. Its steps."""
    (path,) = log_files([str(folder)])
    done = replay(path)
    assert (done.difference, done.torn) == (None, None)
    return done.steps


def check_replay(walker: History, folder: Path, operations: int) -> tuple[EngineCore, int]:
    """The recording of a new walker's history decides as it did; the core, and its steps."""
    with recorded(walker.h, folder):
        walked(walker, operations)
    return walker.h.core, replayed(folder)


def check_restored(walker: History, operations: int) -> int:
    """A restored core does what the original does for so many operations and up to the end; the
    steps of both."""
    core = walker.h.core
    twins = Twins(core, restore(snapshot(core)))
    walker.h.core = twins  # type: ignore[assignment]
    for _ in range(operations):
        walker.walk()
    walker.end()
    return twins.steps
