"""Tokenizers that are read before anybody asks for them: in the process that others are forks of,
and in one that waits for its engine core to load the model.

Reading one takes a few tenths of a second of a processor, and its tables some 10 to 100 MB; forks
share both. They are found by their content: a process whose engine core serves another model than
was expected reads its own.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path

from penstock.errors import UnsupportedModel
from penstock.process.memory import trim_heap
from penstock.text.tokenizer import Tokenizer

MOST_BYTES = 256 << 20
"""The bytes of all files that are read ahead. A tokenizer takes about as much as its
tokenizer.json, at most 33 MB of those in use; what is beyond that is left to gateways."""

_read: dict[bytes, Tokenizer] = {}
_room = [MOST_BYTES]


class ListedModels:
    """The models whose prepared folders a file names, one a line, more and more of them."""

    def __init__(self, listed: Path) -> None:
        self._listed = listed
        self._known: set[str] = set()

    def read(self) -> None:
        """Reads the tokenizers of those that are new. Raises nothing: who serves a model says what
        is wrong with it."""
        with suppress(OSError):
            for folder in self._listed.read_text(encoding="utf-8").split("\n"):
                if folder and folder not in self._known:
                    self._known.add(folder)
                    _read_folder(Path(folder))


class ReadMeanwhile:
    """Reads the tokenizer of a prepared folder in a thread, which the constructor starts. find:
    called there; None: the model isn't prepared yet."""

    def __init__(self, find: Callable[[], Path | None]) -> None:
        self._find = find
        self._content = b""
        self._wanted = True
        self._changing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tokenizer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        folder = self._find()
        content = b"" if folder is None else _read_folder(folder)
        with self._changing:
            self._content = content
            if not self._wanted:
                self._drop()

    def wait(self) -> None:
        """Returns when it is read, or can't be."""
        self._thread.join()

    def forget(self) -> None:
        """Drops what was read or is being read: the processes that need it have it, or never
        will."""
        with self._changing:
            self._wanted = False
            self._drop()

    def _drop(self) -> None:
        content, self._content = self._content, b""
        if content:
            _forget(content)
            trim_heap()  # What the engine core has sent of it is read, too.


def _read_folder(folder: Path) -> bytes:
    """What was read; empty where it can't be, or there is no room."""
    with suppress(OSError, UnsupportedModel):
        file = folder / "tokenizer.json"
        if file.stat().st_size <= _room[0]:
            content = file.read_bytes()
            if read_ahead(content):
                return content
    return b""


def read_ahead(content: bytes) -> bool:
    """Reads a tokenizer.json for this process and its forks, if there is room; whether it did.
    Raises UnsupportedModel where that is none."""
    digest = _digest(content)
    if digest in _read or len(content) > _room[0]:
        return False
    _read[digest] = _prepared(content)
    _room[0] -= len(content)
    return True


def _forget(content: bytes) -> None:
    if _read.pop(_digest(content), None) is not None:
        _room[0] += len(content)


def tokenizer_of(content: bytes, *, add_bos: bool, bos_token_id: int | None) -> Tokenizer:
    """The tokenizer of a tokenizer.json, prepared for requests. Raises UnsupportedModel."""
    # Most processes have read none, and needn't look through megabytes.
    found = _read.get(_digest(content)) if _read else None
    own = copy(found or _prepared(content))  # With the same tables.
    own.add_bos, own.bos_token_id = add_bos and bos_token_id is not None, bos_token_id
    return own


def _prepared(content: bytes) -> Tokenizer:
    tokenizer = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)
    tokenizer.prepare()
    trim_heap()  # Reading takes twice what a tokenizer then has.
    return tokenizer


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
