"""All-gather between the tensor-parallel ranks of one machine, through memory that all of them map.

Each rank writes to an area of its own, which so lies in its NUMA node's memory, and reads the
others'. An area has a counter of rounds and two halves. In round n, a rank writes to half n mod 2,
counts, and reads that half of all others once they have counted. It needs no answer that they have
read: a rank counts round n + 1 after it has read round n, and no rank begins round n + 2, which
overwrites, before all have counted that.

The counter must become visible after the data, and no instruction of Python's says so. x86-64 keeps
the order of stores by itself; on other processors, and without Linux's memfd, ranks exchange
through gloo.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import secrets
import time
from collections.abc import Callable, Sequence

import numpy as np

from penstock_worker.parallel.errors import GroupLost

HALF = 1 << 20
"""Bytes of a half: most of what a rank may write in a round."""
_PAGE = 4096
"""Bytes before the halves, with the counter."""
_SIZE = _PAGE + 2 * HALF
KEPT_VIEWS = 256
"""Tables of so many numbers of rows are kept."""
SPINS = 2000
"""Looks at a counter before the processor is left to others: some 0.2 ms, longer than ranks that
compute alike are apart."""
PAUSE = 1e-4
"""Seconds between looks at the counter of a rank that is late, for example because it loads."""
LOOK_SECONDS = 0.1
"""Seconds between checks of whether a rank that is waited for still exists."""


Rows = range | np.ndarray
"""Numbers of rows, ascending."""


def index_of(rows: Rows) -> slice | np.ndarray:
    """Returns what indexes an array's rows: neighbours aren't copied one by one."""
    return slice(rows.start, rows.stop) if isinstance(rows, range) else rows


class Area:
    """An area in memory: a rank's own, or another's.

    Its file has no name in a file system, so it is gone with the last process that maps it. The
    owner has it locked while it belongs to the group.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        memory = mmap.mmap(file, _SIZE, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.counted = ctypes.c_uint64.from_buffer(memory)
        """Rounds that the owner has written."""
        halves = np.frombuffer(memory, dtype=np.uint8)[_PAGE:]
        self.halves = halves[:HALF], halves[HALF:]
        self.floats = tuple(half.view(np.float32) for half in self.halves)
        self.name = ""
        """What `opened` finds it by, of an own area."""

    @staticmethod
    def own() -> Area:
        """Makes one. Raises OSError where there is no memory for it."""
        name = f"penstock-{secrets.token_hex(16)}"
        file = os.memfd_create(name)
        try:
            os.posix_fallocate(file, 0, _SIZE)
            fcntl.flock(file, fcntl.LOCK_EX)
            area = Area(file)
        except BaseException:
            os.close(file)
            raise
        area.name = f"{os.getpid()} {file} {name}"
        return area

    @staticmethod
    def opened(name: str) -> Area:
        """Opens another rank's. Raises OSError or ValueError where this process can't: the rank is
        on another machine, another user's, or in another container."""
        pid, number, token = name.split(" ")
        path = f"/proc/{int(pid)}/fd/{int(number)}"
        if not os.readlink(path).startswith(f"/memfd:{token} "):
            raise OSError(f"{path} is another process's")
        file = os.open(path, os.O_RDWR)
        try:
            return Area(file)
        except BaseException:
            os.close(file)
            raise

    @property
    def left(self) -> bool:
        """Whether another rank, whose area it is, has left the group or has died."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        """Leaves the group. The memory is unmapped when nothing refers to it any more."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = -1


class _Tables:
    """Areas as tables of one way to share columns. Views are kept: making them would take half of
    the time of a decode's message."""

    def __init__(self, areas: Sequence[Area], parts: tuple[range, ...]) -> None:
        """parts: the columns of each rank."""
        self.parts = parts
        self.slices = [slice(part.start, part.stop) for part in parts]
        self.most = HALF // (4 * max(map(len, parts)))
        """Rows that fit into half an area."""
        self._areas = areas
        self._views: dict[tuple[int, int], list[np.ndarray]] = {}

    def views(self, half: int, rows: int) -> list[np.ndarray]:
        """Returns each rank's part in a half, [rows, columns] float32."""
        found = self._views.get((half, rows))
        if found is None:
            found = [
                area.floats[half][: rows * len(part)].reshape(rows, len(part))
                for area, part in zip(self._areas, self.parts, strict=True)
            ]
            if len(self._views) < KEPT_VIEWS:
                self._views[half, rows] = found
        return found


class MemoryGather:
    """The all-gather of one rank. All ranks make the same calls in the same order."""

    def __init__(self, areas: Sequence[Area], rank: int, wanted: Callable[[], bool]) -> None:
        """areas: of all ranks, in their order.  rank: this one's.  wanted: whether the session that
        the group was formed for still lasts."""
        self._areas = areas
        self._rank = rank
        self._wanted = wanted
        self._rounds = 0
        self._tables: dict[tuple[range, ...], _Tables] = {}

    def gather(self, mine: np.ndarray, out: np.ndarray) -> None:
        """mine: [bytes] uint8.  out: [ranks, bytes] uint8, takes each rank's. Raises GroupLost when
        another rank is gone, or the session is over."""
        for start in range(0, len(mine), HALF):
            end = min(start + HALF, len(mine))
            self._round(mine[start:end], out[:, start:end])

    def _round(self, mine: np.ndarray, out: np.ndarray) -> None:
        own, half, size = self._areas[self._rank], self._rounds % 2, len(mine)
        own.halves[half][:size] = mine
        self._count(own)
        for rank, area in enumerate(self._areas):
            if area is own:
                out[rank] = mine
            else:
                self._await(area)
                out[rank] = area.halves[half][:size]

    def complete_columns(self, values: np.ndarray, parts: tuple[range, ...], first: int) -> bool:
        """Gathers columns in place; returns whether it did, which it doesn't where a row of a part
        doesn't fit into half an area.

        values: [rows, columns] float32.  parts: the columns of each rank.  first: where this rank's
        stand in `values`; afterwards all are in their places. Raises what `gather` does.
        """
        tables, rows = self._tables_of(parts), len(values)
        if rows <= tables.most:
            self._complete(values, tables, first)
        elif tables.most == 0:
            return False
        else:
            for start in range(0, rows, tables.most):
                self._complete(values[start : start + tables.most], tables, first)
        return True

    def _complete(self, values: np.ndarray, tables: _Tables, first: int) -> None:
        views = tables.views(self._rounds % 2, len(values))
        own = tables.parts[self._rank]
        views[self._rank][...] = values[:, first : first + len(own)]
        self._count(self._areas[self._rank])
        for area, part, view in zip(self._areas, tables.slices, views, strict=True):
            if view is not views[self._rank]:
                self._await(area)
            elif first == own.start:
                continue
            values[:, part] = view

    def exchange_rows(
        self, values: np.ndarray, held: Sequence[Rows], columns: Sequence[range]
    ) -> bool:
        """Exchanges rows (see `Group`); returns whether it did, which it doesn't where a row
        doesn't fit into half an area. Raises what `gather` does."""
        width = values.shape[1]
        most = HALF // (4 * width)
        if not most:
            return False
        own = self._areas[self._rank]
        for start in range(0, max(map(len, held)), most):
            half = self._rounds % 2
            parts = [rows[start : start + most] for rows in held]
            mine = parts[self._rank]
            own.floats[half][: len(mine) * width].reshape(-1, width)[...] = values[index_of(mine)]
            self._count(own)
            self._take_rows(values, parts, half, columns[self._rank])
        return True

    def _take_rows(self, values: np.ndarray, parts: Sequence[Rows], half: int, mine: range) -> None:
        width, wanted = values.shape[1], slice(mine.start, mine.stop)
        for rank, (area, rows) in enumerate(zip(self._areas, parts, strict=True)):
            if rank == self._rank:
                continue
            self._await(area)
            given = area.floats[half][: len(rows) * width].reshape(-1, width)
            values[index_of(rows), wanted] = given[:, wanted]

    def _tables_of(self, parts: tuple[range, ...]) -> _Tables:
        found = self._tables.get(parts)
        if found is None:
            found = self._tables[parts] = _Tables(self._areas, parts)
        return found

    def _count(self, own: Area) -> None:
        """Shows the others that this rank's half of a round is written."""
        self._rounds += 1
        own.counted.value = self._rounds

    def _await(self, area: Area) -> None:
        """Until its rank has written this round's half."""
        counted, rounds = area.counted, self._rounds
        if counted.value >= rounds:
            return
        for _ in range(SPINS):
            if counted.value >= rounds:
                return
        looked, pause = time.monotonic(), 0.0
        while counted.value < rounds:
            # The other rank may need this processor; and other threads here, Python's lock.
            os.sched_yield()
            time.sleep(pause)
            if time.monotonic() - looked < LOOK_SECONDS:
                continue
            looked, pause = time.monotonic(), PAUSE
            if not self._wanted():
                raise GroupLost("the session ended while another rank was waited for")
            if area.left and counted.value < rounds:
                raise GroupLost("another rank was lost: it has left the group")

    def close(self) -> None:
        """Leaves the group. Ranks that wait for this one notice it."""
        for area in self._areas:
            area.close()


def memory_gather(
    meet: Callable[[str, str], list[str]],
    ranks: range,
    rank: int,
    wanted: Callable[[], bool],
) -> MemoryGather | None:
    """Returns the all-gather of a stage's ranks; None, for all of them alike, where one can't map
    another's area.

    meet: exchanges words of all ranks of the model, in their order, about something.  ranks: those
    of the stage.  rank: this one's place among them.
    """
    fit = platform.system() == "Linux" and platform.machine() == "x86_64"
    try:
        own = Area.own() if fit else None
    except OSError:
        own = None
    names = meet("area", "" if own is None else own.name)
    areas: list[Area] = []
    try:
        for number, name in enumerate(names[each] for each in ranks):
            areas.append(own if number == rank and own is not None else Area.opened(name))
    except (OSError, ValueError):
        pass
    complete = len(areas) == len(ranks)
    mapped = meet("mapped", "yes" if complete else "no")
    found = MemoryGather(areas, rank, wanted)
    if all(mapped[each] == "yes" for each in ranks):
        return found
    found.close()
    if own is not None:
        own.close()
    return None
