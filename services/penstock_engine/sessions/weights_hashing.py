"""The SHA-256 of the files that a model's weights are in, for receipts: read in a thread, when the
first front end asks for them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from queue import Empty, SimpleQueue

from penstock.errors import StartupError
from penstock.model.prepared_model import PreparedModel
from penstock.prepare.folder import check_weights
from penstock.protocol.call_values import encode_value
from penstock.protocol.from_frontend import FromFrontend, HashWeights
from penstock.protocol.to_frontend import Called
from penstock_engine.core import EngineCore

MAX_ASKED = 256
"""Calls that may wait for one model's files; more are refused."""
NICENESS = 10
"""The thread's niceness: steps come first."""


class WeightsHashing:
    """Belongs to the engine core's loop, which hands messages to `takes`, and sends `answers` in
    every turn while it was `asked`. What was read is kept as long as a file's size and time stay;
    of files that aren't what was prepared any more, what was read before. Workers still have that
    in memory."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._waiting: dict[str, list[tuple[bytes, int]]] = {}
        """Sessions and their calls, by the digest of the model whose files are being read."""
        self._done: SimpleQueue[tuple[str, bytes, str]] = SimpleQueue()
        """Digests, with what was found, or what went wrong."""
        self._known: dict[tuple[str, int, int], str] = {}
        """Digests of files, by path, size and time."""
        self._found: dict[str, bytes] = {}
        """What was answered last, by the digest of the model: of the one that is served."""
        self._refused: list[tuple[bytes, Called]] = []
        self.asked = False
        """Whether there will be answers, or are."""

    def takes(self, session: bytes, message: FromFrontend) -> bool:
        """Whether a message was for this; the core gets all others, as nothing that it decides
        depends on it."""
        if not isinstance(message, HashWeights):
            return False
        if self._core.state.frontends.get(session) is not None:
            self._ask(session, message.call, self._core.state.facts.model)
        return True

    def _ask(self, session: bytes, call: int, model: PreparedModel) -> None:
        """Has the model's files read, unless they are being read."""
        self.asked = True
        waiting = self._waiting.get(model.digest)
        if waiting is None:
            self._waiting[model.digest] = [(session, call)]
            threading.Thread(target=self._read, args=(model,), daemon=True).start()
        elif len(waiting) < MAX_ASKED:
            waiting.append((session, call))
        else:
            refusal = f"{MAX_ASKED} calls wait for the weights' digests"
            self._refused.append((session, Called(call, 0, 1, code="unavailable", error=refusal)))

    def answers(self) -> list[tuple[bytes, Called]]:
        """Answers that are due, each with the session that gets it."""
        due, self._refused = self._refused, []
        with contextlib.suppress(Empty):
            while True:
                digest, result, error = self._done.get_nowait()
                due += [
                    (session, Called(call, 0, 1, result, "failed" if error else "", error))
                    for session, call in self._waiting.pop(digest)
                ]
        self.asked = bool(self._waiting)
        return due

    def _read(self, model: PreparedModel) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            found = self._digests(model)
            self._found = {model.digest: found}
            self._done.put((model.digest, found, ""))
        except OSError as error:
            self._fail(model, f"the weights can't be read: {error.strerror}")
        except StartupError as error:
            self._fail(model, str(error))

    def _fail(self, model: PreparedModel, why: str) -> None:
        known = self._found.get(model.digest, b"")
        self._done.put((model.digest, known, "" if known else why))

    def _digests(self, model: PreparedModel) -> bytes:
        """Digests of all files, encoded for the answer. Raises OSError, and StartupError where a
        file is another than what was prepared."""
        check_weights(model)
        found = {Path(file).name: self._digest(file) for file in weight_files(model)}
        check_weights(model)
        return encode_value(found)

    def _digest(self, file: str) -> str:
        stat = os.stat(file)
        key = file, stat.st_size, stat.st_mtime_ns
        if key not in self._known:
            with open(file, "rb") as opened:
                self._known[key] = hashlib.file_digest(opened, "sha256").hexdigest()
        return self._known[key]


def weight_files(model: PreparedModel) -> list[str]:
    """Paths of all files that hold weights."""
    mmproj = model.weights.mmproj
    return [*model.weights.files, *([mmproj] if mmproj else [])]
