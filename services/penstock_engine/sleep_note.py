"""A file that says that the model sleeps, so that it still does when the engine core comes back."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.process import logs
from penstock.protocol.common import SleepLevel

log = logs.get(__name__)

LEVELS: tuple[SleepLevel, ...] = (1, 2)


class SleepNote:
    """path: of the file, which is there while the model sleeps; None: nothing is noted."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._noted: SleepLevel = self._read()

    @property
    def level(self) -> SleepLevel:
        """The level that was noted last, by this life or the one before."""
        return self._noted

    def keep(self, level: SleepLevel) -> None:
        """Records a changed level. Call this before anybody learns of it."""
        if level == self._noted:
            return
        self._noted = level
        if self._path is None:
            return
        try:
            self._write(self._path, level)
        except OSError as error:
            log.error(
                "the sleep level can't be recorded", path=str(self._path), error=error.strerror
            )

    def _read(self) -> SleepLevel:
        try:
            noted = "" if self._path is None else self._path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return 0
        return next((level for level in LEVELS if noted == str(level)), 0)

    @staticmethod
    def _write(path: Path, level: SleepLevel) -> None:
        if not level:
            path.unlink(missing_ok=True)
            return
        making = path.with_suffix(f".{os.getpid()}")
        making.write_text(f"{level}\n")
        making.replace(path)
