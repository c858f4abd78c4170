"""A file that says which weights the model was given last, so that it still has them when the
engine core comes back."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import PenstockError
from penstock.prepare.folder import load_manifest
from penstock.process import logs
from penstock_engine.facts import EngineFacts
from penstock_engine.sessions.weights import misfit, with_weights

log = logs.get(__name__)


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
