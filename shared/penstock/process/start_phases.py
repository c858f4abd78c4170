"""Where the time of a start goes: each process notes what it was at, and the supervisor gathers
that when the system is ready.

Those that the supervisor starts say so in files of the runtime folder. Nothing is noted in other
processes, nor once a file has been written.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import msgspec

SUFFIX = ".phases"
MOST_BYTES = 1 << 16
"""Bytes of a file that are read."""
DISK_BLOCK = 512
"""Bytes of what getrusage counts as one block."""
MB = 1_000_000


class StartPhase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process did between two moments of its start."""

    name: str
    seconds: float
    processor_seconds: float
    """Processor time of all threads of the process meanwhile."""
    bytes: int = 0
    """Bytes of the files whose contents it took."""
    disk_bytes: int = 0
    """Bytes that the kernel read for it from a disk: the rest was in the page cache. 0 where the
    kernel doesn't count them."""

    def __str__(self) -> str:
        return f"{self.name} {self.seconds:.2f}{self.of_files and f' ({self.of_files})'}"

    @property
    def of_files(self) -> str:
        """What was read, and how fast; empty if nothing was."""
        if not self.bytes:
            return ""
        speed = self.bytes / MB / max(self.seconds, 1e-3)
        cold = f", {self.disk_bytes / MB:,.0f} MB from the disk" if self.disk_bytes else ""
        return f"{self.bytes / MB:,.0f} MB at {speed:,.0f} MB/s{cold}"


class StartPhases:
    """The phases of this process's start, from its birth on."""

    def __init__(self) -> None:
        self.found: list[StartPhase] = []
        self.files: tuple[str, ...] = ()
        """Names of the files of weights."""
        self._noting = False
        self._file: Path | None = None
        self._passed, self._processor, self._blocks = 0.0, 0.0, 0

    def report_to(self, file: Path | None) -> None:
        """Begins to take notes, of what has passed since the process began too; goes on with them
        where they have begun. file: for the supervisor; None in the supervisor itself, and while
        a process doesn't know it."""
        if not self._noting:
            self._passed = born()
        self._noting, self._file = True, file

    def begin_anew(self) -> None:
        """Forgets all phases, in a fork: what its parent has noted isn't this process's."""
        vars(self).update(vars(StartPhases()))

    def passed(self, name: str, *, reads: bool = False) -> None:
        """What came since the phase before was this one. reads: `files` whole."""
        if not self._noting:
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        now, processor = time.monotonic(), usage.ru_utime + usage.ru_stime
        self.found.append(
            StartPhase(
                name=name,
                seconds=now - self._passed,
                processor_seconds=processor - self._processor,
                bytes=sum(map(_size, self.files)) if reads else 0,
                disk_bytes=(usage.ru_inblock - self._blocks) * DISK_BLOCK,
            )
        )
        self._passed, self._processor, self._blocks = now, processor, usage.ru_inblock

    def done(self) -> None:
        """Writes the file. Errors are ignored: a full disk doesn't fail a start."""
        noting, self._noting, file = self._noting, False, self._file
        if not noting or file is None:
            return
        whole = file.with_suffix(".new")
        try:
            whole.write_bytes(msgspec.json.encode(self.found))
            whole.rename(file)
        except OSError:
            whole.unlink(missing_ok=True)


START = StartPhases()
"""The phases of this process."""


def read_phases(file: Path) -> list[StartPhase]:
    """What a process has written; empty if it hasn't."""
    try:
        with file.open("rb") as opened:
            return msgspec.json.decode(opened.read(MOST_BYTES), type=list[StartPhase])
    except (OSError, msgspec.MsgspecError):
        return []


def born() -> float:
    """Time at which this process began, by time.monotonic, to 10 ms; now, where the kernel doesn't
    say."""
    now = time.monotonic()
    try:
        # After the name, which may contain anything; the fields are numbered from 3 there.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        begun = int(fields[22 - 3]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - begun
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - max(age, 0.0)


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0
