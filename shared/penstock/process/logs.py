"""One-line structured records on stderr, in logfmt: key=value pairs, parted by spaces.

    time=2026-01-31T12:00:00.123Z level=info process=engine event="worker ready" rank=0

Or each a JSON object with the same fields, whose numbers stay numbers; or, on a terminal, a short
line to read:

    12:00:00 engine      worker ready  rank=0

Standard output is never written to: it belongs to what a user asked to see.  Every logger goes
through the same formatter: its message is the event, what it gives as `extra` are the fields.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

MAX_VALUE_LENGTH = 4000
SELDOM_SECONDS = 60.0
"""Least seconds between two records of an event that others can cause at will."""
_FIELDS = "penstock_fields"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", _FIELDS}
_PLAIN = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/@+,[]()<>*%#~^"
)


# A program that uses the library says where its records go; Python's own last resort is stderr.
logging.getLogger("penstock").addHandler(logging.NullHandler())


class EventLog:
    """A logger of events with fields: `log.info("worker ready", rank=0)`.

    exception=True adds the traceback that is being handled, on the same line.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger

    def debug(self, event: str, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, exception: bool = False, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields, exception)

    def _write(
        self, level: int, event: str, fields: dict[str, Any], exception: bool = False
    ) -> None:
        if self.logger.isEnabledFor(level):
            self.logger.log(level, "%s", event, extra={_FIELDS: fields}, exc_info=exception)


class Seldom:
    """Writes an event that others can cause at will: at once, and then at most once a minute, with
    how often it was left out since.  write: a method of an EventLog."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._next = -math.inf
        self._left_out = 0

    def __call__(self, event: str, **fields: Any) -> None:
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        more = {"left_out": self._left_out} if self._left_out else {}
        self._next, self._left_out = now + SELDOM_SECONDS, 0
        self._write(event, **fields, **more)


def get(name: str) -> EventLog:
    """The event log of a module; `name` is its __name__."""
    return EventLog(logging.getLogger(name))


LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def setup(
    process_name: str,
    *,
    level: str = "info",
    form: str = "auto",
    stream: TextIO | None = None,
) -> None:
    """Sends every record of this process to stderr, under `process_name`. Call it once, first.

    level: the least of LEVELS that is shown.  form: text, logfmt or json; auto: text on a terminal,
    else logfmt.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(formatter(process_name, form, handler.stream))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    logging.captureWarnings(True)
    # A reader of stderr that went away is no reason to print tracebacks about it.
    logging.raiseExceptions = False


def formatter(process_name: str, form: str, stream: TextIO | None = None) -> logging.Formatter:
    """What makes lines of records. form: see `setup`.  stream: where they go."""
    terminal = stream is not None and stream.isatty()
    if form == "text" or (form == "auto" and terminal):
        dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return TextFormatter(process_name, colour=terminal and not dumb)
    return (JsonFormatter if form == "json" else LogfmtFormatter)(process_name)


class _PairFormatter(logging.Formatter):
    """A record as pairs of a name and a value."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process = process_name

    def pairs(self, record: logging.LogRecord) -> list[tuple[str, Any]]:
        pairs: list[tuple[str, Any]] = [
            ("time", _utc(record.created)),
            ("level", record.levelname.lower()),
            ("process", self._process),
            ("event", record.getMessage()),
        ]
        # EventLog's fields travel under one name, so that none can clash with a record's own.
        pairs.extend(getattr(record, _FIELDS, {}).items())
        pairs.extend((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if not record.name.startswith("penstock"):
            pairs.append(("logger", record.name))
        if record.exc_info and record.exc_info[0] is not None:
            pairs.append(("exception", self.formatException(record.exc_info)))
        return pairs


class LogfmtFormatter(_PairFormatter):
    """Formats a record as one logfmt line, whatever its message or fields hold."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={quote(value)}" for key, value in self.pairs(record))


class TextFormatter(_PairFormatter):
    """Formats a record for a person: local time, process, event and fields, on one line.

    colour: by ANSI codes; what passes is dim, a warning is yellow and an error red.
    """

    def __init__(self, process_name: str, *, colour: bool) -> None:
        super().__init__(process_name)
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        _, (_, level), (_, process), (_, event), *fields = self.pairs(record)
        shown = event if record.levelno < logging.WARNING else f"{level}: {event}"
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        rest = " ".join(f"{key}={quote(value)}" for key, value in fields)
        said = "".join(map(_printable, shown))
        return "  ".join(
            part
            for part in (
                self._in(_DIM, f"{clock} {process:<10}"),
                self._in(_COLOURS.get(level, ""), said),
                self._in(_DIM, rest),
            )
            if part
        )

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code and text else text


_DIM = "2"
_COLOURS = {"warning": "33", "error": "31", "critical": "31"}
"""ANSI codes by level."""


def _printable(character: str) -> str:
    """An event may quote what a client sent: nothing in it may move a terminal's cursor."""
    return character if character.isprintable() else _escape(character)


class JsonFormatter(_PairFormatter):
    """Formats a record as one line of JSON, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({key: _jsonable(value) for key, value in self.pairs(record)})


def _jsonable(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value if isinstance(value, (bool, int)) or value is None else _bounded(str(value))


def quote(value: Any) -> str:
    """A field's value: bare when it is plain, else in double quotes with escapes; bounded."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = _bounded(str(value))
    if text and _PLAIN.issuperset(text):
        return text
    return '"' + "".join(map(_escape, text)) + '"'


def _bounded(text: str) -> str:
    if len(text) <= MAX_VALUE_LENGTH:
        return text
    half = MAX_VALUE_LENGTH // 2
    return f"{text[:half]} … {text[-half:]}"


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    # Also keeps the odd line separators (U+0085, U+2028) from breaking a record in two.
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
