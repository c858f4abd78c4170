"""Files that say whether the model sleeps and which weights it was given, so that both still hold
when the engine core comes back."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import PenstockError
from penstock.prepare.folder import load_manifest
from penstock.process import logs
from penstock.protocol.common import SleepLevel
from penstock_engine.facts import EngineFacts
from penstock_engine.sessions.weights import misfit, with_weights

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


class WeightsNote:
    """path: of the file, which names a prepared folder once the weights were replaced; None:
    nothing is noted."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._noted = ""

    def apply(self, facts: EngineFacts) -> EngineFacts:
        """Facts with the weights that were noted by the life before, if they are still there."""
        self._noted = facts.folder
        try:
            folder = "" if self._path is None else self._path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return facts
        if not folder:
            return facts
        try:
            model = load_manifest(Path(folder))
            wrong = misfit(facts.model, model)
        except PenstockError as error:
            wrong = str(error)
        if wrong is not None:
            log.error("the weights on record can't be used", folder=folder, reason=wrong)
            return facts
        self._noted = folder
        return with_weights(facts, folder, model)

    def keep(self, folder: str) -> None:
        """Records a changed folder. Call this before anybody learns of it."""
        if folder == self._noted:
            return
        self._noted = folder
        if self._path is None:
            return
        making = self._path.with_suffix(f".{os.getpid()}")
        try:
            making.write_text(f"{folder}\n")
            making.replace(self._path)
        except OSError as error:
            log.error(
                "the new weights can't be recorded", path=str(self._path), error=error.strerror
            )
