"""A batch's file on this machine, and what has been answered of it so far.

Answers are appended to OUTPUT.partial as they come. A run with the same file and output continues
after them; when all are there, OUTPUT is written in the file's order, and the partial one is gone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from codecs import BOM_UTF8
from pathlib import Path
from typing import IO, Any, NamedTuple

from penstock.errors import InvalidRequest

MAX_LINE = 64 << 20
"""Bytes."""
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/score",
    "/v1/rerank",
    "/v1/classify",
    "/pooling",
)


class FileLine(NamedTuple):
    """One request. number: of the line, from 1."""

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]


def read_lines(file: Path) -> list[FileLine]:
    """All requests. Raises InvalidRequest that names the line at fault."""
    found: list[FileLine] = []
    seen: set[str] = set()
    try:
        with file.open("rb") as opened:
            for number, raw in enumerate(iter(lambda: opened.readline(MAX_LINE + 1), b""), 1):
                if number == 1:
                    raw = raw.removeprefix(BOM_UTF8)  # Editors of Windows write one.
                if not raw.strip():
                    continue
                line = _read_line(number, raw)
                if line.custom_id in seen:
                    raise _wrong(number, f"custom_id {line.custom_id[:100]!r} appears twice")
                seen.add(line.custom_id)
                found.append(line)
    except OSError as error:
        raise InvalidRequest(f"{file} can't be read: {error.strerror}") from None
    if not found:
        raise InvalidRequest(f"{file} holds no request")
    return found


def _read_line(number: int, raw: bytes) -> FileLine:
    if len(raw) > MAX_LINE:
        raise _wrong(number, f"it has more than {MAX_LINE} bytes")
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _wrong(number, f"it is no JSON: {error}") from None
    if not isinstance(line, dict):
        raise _wrong(number, "it must be an object with custom_id, url and body")
    custom_id, url, body = (line.get(name) for name in ("custom_id", "url", "body"))
    if not isinstance(custom_id, str) or not custom_id:
        raise _wrong(number, "custom_id must be a text")
    if url not in ENDPOINTS:
        raise _wrong(number, f"url is {url!r}; allowed: {', '.join(ENDPOINTS)}")
    if not isinstance(body, dict) or body.get("stream"):
        raise _wrong(number, "body must be an object, without stream: true")
    return FileLine(number, custom_id, url, body)


def _wrong(number: int, reason: str) -> InvalidRequest:
    return InvalidRequest(f"line {number}: {reason}")


class AnswersSoFar:
    """The answers so far, on the disk. Only one process may have it open.

    Raises InvalidRequest where another has, or where it belongs to a file with other contents."""

    def __init__(self, file: Path, output: Path) -> None:
        self._output = output
        self._path = output.with_name(f"{output.name}.partial")
        self._written = threading.Lock()
        self.answered: dict[int, str] = {}
        """Lines of the output, by the number of the line that they answer."""
        try:
            self._partial: IO[bytes] = self._path.open("a+b")
        except OSError as error:
            raise InvalidRequest(f"{self._path} can't be written: {error.strerror}") from None
        try:
            fcntl.flock(self._partial, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._partial.close()
            raise InvalidRequest(f"{self._path} is in use by another process") from None
        try:
            self._read(_digest(file))
        except InvalidRequest:
            self._partial.close()
            raise

    def keep(self, number: int, line: str) -> None:
        """Writes an answered line, which stays whatever becomes of this process. May be called from
        any thread."""
        with self._written:
            self.answered[number] = line
            self._append([number, line])

    def finish(self) -> None:
        """Writes the output."""
        new = self._output.with_name(f"{self._output.name}.new")
        with new.open("w", encoding="utf-8") as file:
            for number in sorted(self.answered):
                file.write(f"{self.answered[number]}\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._output)
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Another process may go on."""
        self._partial.close()

    def _read(self, digest: str) -> None:
        self._partial.seek(0)
        head = self._partial.readline()
        if _head(digest).startswith(head) and head != _head(digest):  # New, or broken off there.
            self._partial.truncate(0)
            self._append({"file": digest})
            return
        if head != _head(digest):
            raise InvalidRequest(
                f"{self._path} belongs to a request file with other contents; remove it, or choose "
                "another output"
            )
        whole = len(head)
        for raw in self._partial:
            if not raw.endswith(b"\n"):
                break
            number, line = json.loads(raw)
            self.answered[number] = line
            whole += len(raw)
        self._partial.truncate(whole)  # What was broken off by a crash is asked again.

    def _append(self, value: object) -> None:
        self._partial.seek(0, os.SEEK_END)
        self._partial.write(json.dumps(value).encode() + b"\n")
        self._partial.flush()


def _head(digest: str) -> bytes:
    return json.dumps({"file": digest}).encode() + b"\n"


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
