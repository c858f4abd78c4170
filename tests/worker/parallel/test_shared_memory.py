"""What ranks gather through shared memory, and how they notice that one is gone."""

from __future__ import annotations

import os
import platform
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from penstock_worker.parallel import shared_memory
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.shared_memory import HALF, Area, MemoryGather, memory_gather
from tests.worker.parallel.together import Formed

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors use gloo"),
]


class Meeting:
    """Where ranks exchange words, each in its own thread."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._words = [""] * ranks

    def at(self, rank: int) -> Callable[[str, str], list[str]]:
        def meet(what: str, value: str) -> list[str]:
            self._words[rank] = f"{what} {value}"
            self._barrier.wait()
            found = list(self._words)
            self._barrier.wait()
            assert {each.partition(" ")[0] for each in found} == {what}
            return [each.partition(" ")[2] for each in found]

        return meet


class Members:
    """Ranks of one stage, in threads of this process. wanted: whether their session stands."""

    def __init__(self, ranks: int) -> None:
        self.wanted = True
        self.pool = ThreadPoolExecutor(ranks)
        meeting = Meeting(ranks)
        jobs = [
            self.pool.submit(
                memory_gather, meeting.at(rank), range(ranks), rank, lambda: self.wanted
            )
            for rank in range(ranks)
        ]
        self.found = [job.result(60) for job in jobs]

    @property
    def gathers(self) -> list[MemoryGather]:
        return [each for each in self.found if each is not None]

    def gather(self, given: list[np.ndarray]) -> list[np.ndarray]:
        """What each rank has of all."""
        outs = [np.zeros((len(given), len(given[0])), np.uint8) for _ in given]
        jobs = [
            self.pool.submit(one.gather, mine, out)
            for one, mine, out in zip(self.gathers, given, outs, strict=True)
        ]
        for job in jobs:
            job.result(60)
        return outs

    def close(self) -> None:
        for each in self.gathers:
            each.close()
        self.pool.shutdown()


@pytest.fixture
def members() -> Iterator[Callable[[int], Members]]:
    made: list[Members] = []

    def make(ranks: int) -> Members:
        made.append(Members(ranks))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_rank_has_what_all_gave(ranks: int, members: Any) -> None:
    """Round after round: a rank that is ahead overwrites nothing that another still reads."""
    group, drawn = members(ranks), random.Random(ranks)
    for _ in range(150):
        size = drawn.choice([0, 1, 7, 64, 4096, 100_000])
        given = [np.frombuffer(drawn.randbytes(size), np.uint8) for _ in range(ranks)]
        for out in group.gather(given):
            assert np.array_equal(out, np.stack(given))


@pytest.mark.parametrize("size", [HALF - 1, HALF, HALF + 1, 3 * HALF + 5])
def test_what_is_larger_than_an_area_takes_several_rounds(size: int, members: Any) -> None:
    drawn = random.Random(size)
    given = [np.frombuffer(drawn.randbytes(size), np.uint8) for _ in range(2)]
    for out in members(2).gather(given):
        assert np.array_equal(out, np.stack(given))


WIDTHS = (
    (range(5), range(5, 8)),
    (range(4), range(4)),
    (range(1000), range(1000, 3000)),
)


@pytest.mark.parametrize("first", ["in place", "in front"])
@pytest.mark.parametrize("parts", WIDTHS, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 400])
def test_columns_are_completed_where_they_are(
    rows: int, parts: tuple[range, ...], first: str, members: Any
) -> None:
    """400 rows of the widest take several rounds. Columns of nobody stay as they are."""
    group, width = members(2), parts[-1].stop
    whole = np.random.default_rng(rows).random((rows, width + 3), dtype=np.float32)
    for _ in range(3):
        jobs = []
        given = [np.full_like(whole, -1) for _ in parts]
        for one, part, values in zip(group.gathers, parts, given, strict=True):
            at = part.start if first == "in place" else 0
            values[:, at : at + len(part)] = whole[:, part.start : part.stop]
            job = group.pool.submit(one.complete_columns, values[:, :width], parts, at)
            jobs.append(job)
        for job, values in zip(jobs, given, strict=True):
            job.result(60)
            assert np.array_equal(values[:, :width], whole[:, :width])
            assert (values[:, width:] == -1).all()


@pytest.mark.parametrize(
    "held", [[(0, 2, 5), (), (1, 3, 4)], [(), (), (0, 1, 2, 3, 4, 5)]], ids=str
)
def test_rows_are_exchanged_by_columns(held: list[tuple[int, ...]], members: Any) -> None:
    """Rows of one rank are neighbours, or not. A rank reads its columns, and writes no others."""
    group, parts = members(3), (range(3), range(3, 4), range(4, 9))
    whole = np.random.default_rng(3).random((6, 9), dtype=np.float32)
    given = [np.full_like(whole, -1) for _ in held]
    for values, rows in zip(given, held, strict=True):
        values[list(rows)] = whole[list(rows)]
    asked = [np.array(rows, dtype=int) if len(rows) < 6 else range(6) for rows in held]
    jobs = [
        group.pool.submit(one.exchange_rows, values, asked, parts)
        for one, values in zip(group.gathers, given, strict=True)
    ]
    assert all(job.result(60) for job in jobs)
    for values, rows, part in zip(given, held, parts, strict=True):
        wanted = slice(part.start, part.stop)
        assert np.array_equal(values[:, wanted], whole[:, wanted])
        others = np.delete(np.delete(values, list(rows), 0), list(part), 1)
        assert (others == -1).all()


def test_rows_that_fit_into_no_area_are_left_to_others(members: Any) -> None:
    values = np.zeros((2, HALF // 4 + 1), dtype=np.float32)
    [one, _] = members(2).gathers
    assert not one.exchange_rows(values, [range(1), range(1, 2)], (range(1), range(1, 2)))


def wait_in_vain(group: Members) -> Exception | None:
    """What the first rank raises of a gather in which the second takes no part, at the end."""
    return group.pool.submit(
        group.gathers[0].gather, np.zeros(8, np.uint8), np.zeros((2, 8), np.uint8)
    ).exception


def test_a_rank_that_leaves_is_noticed(members: Any) -> None:
    group = members(2)
    ended = wait_in_vain(group)
    group.gathers[1].close()
    with pytest.raises(GroupLost, match="another rank was lost: it has left"):
        raise ended(60)


def test_the_end_of_the_session_is_noticed(members: Any) -> None:
    group = members(2)
    ended = wait_in_vain(group)
    group.wanted = False
    with pytest.raises(GroupLost, match="the session ended while another rank was waited for"):
        raise ended(60)


OWNER = """
import signal
from penstock_worker.parallel.shared_memory import Area
area = Area.own()
print(area.name, flush=True)
signal.pause()
"""


def test_a_process_that_was_killed_has_left() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        try:
            assert owner.stdout is not None
            area = Area.opened(owner.stdout.readline().strip())
            assert not area.left
            owner.send_signal(signal.SIGKILL)
            owner.wait(60)
            assert area.left
            area.close()
        finally:
            owner.kill()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b c",
        "1 2",
        "OWN 0 penstock-0",
        f"{2**22 + 1} 0 penstock-0",
        "1 ../../../etc/passwd x",
    ],
)
def test_only_an_area_is_opened(name: str) -> None:
    with pytest.raises((OSError, ValueError)):
        Area.opened(name.replace("OWN", str(os.getpid())))


def test_an_areas_name_with_another_ones_token_opens_nothing() -> None:
    mine = Area.own()
    pid, file, _ = mine.name.split(" ")
    with pytest.raises(OSError, match="another process's"):
        Area.opened(f"{pid} {file} penstock-{'0' * 32}")
    mine.close()


def test_ranks_that_cannot_map_each_others_memory_all_do_without(
    monkeypatch: pytest.MonkeyPatch, members: Any
) -> None:
    opened, lock, tries = Area.opened, threading.Lock(), iter(range(9))

    def second_fails(name: str) -> Area:
        with lock:
            number = next(tries)
        if number == 1:
            raise PermissionError(name)
        return opened(name)

    monkeypatch.setattr(Area, "opened", staticmethod(second_fails))
    assert members(2).found == [None, None]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_group_gathers_alike_with_and_without(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory.platform, "machine", lambda: machine)

    def given(rank: int) -> torch.Tensor:
        return torch.arange(12, dtype=torch.bfloat16).view(3, 4) + 100 * rank

    def gathered(ranks: Ranks) -> tuple[list[Any], list[bool]]:
        rank = ranks.place.rank
        return ranks.gather(given(rank)).tolist(), ranks.any([rank == 1, False])

    with Formed(2, 2) as formed:
        for stage, ranks in enumerate((formed.ranks[:2], formed.ranks[2:])):
            assert all((each._group._memory is not None) == (machine == "x86_64") for each in ranks)
            found = [job.result(60) for job in [formed.pool.submit(gathered, r) for r in ranks]]
            whole = [given(2 * stage + at).tolist() for at in range(2)]
            assert found == [(whole, [stage == 0, False])] * 2
