"""One-line structured records on stderr, in logfmt: key=value pairs, parted by spaces.

    time=2026-01-31T12:00:00.123Z level=info process=engine event="worker ready" rank=0

Standard output is never written to: it belongs to what a user asked to see.  Every logger goes
through the same formatter: its message is the event, what it gives as `extra` are the fields.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

MAX_VALUE_LENGTH = 4000
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


def get(name: str) -> EventLog:
    """The event log of a module; `name` is its __name__."""
    return EventLog(logging.getLogger(name))


def setup(process_name: str, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Sends every record of this process to stderr, under `process_name`. Call it once, first."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(LogfmtFormatter(process_name))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
    # A reader of stderr that went away is no reason to print tracebacks about it.
    logging.raiseExceptions = False


class LogfmtFormatter(logging.Formatter):
    """Formats a record as one logfmt line, whatever its message or fields hold."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process = process_name

    def format(self, record: logging.LogRecord) -> str:
        pairs = [
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
        return " ".join(f"{key}={quote(value)}" for key, value in pairs)


def quote(value: Any) -> str:
    """A field's value: bare when it is plain, else in double quotes with escapes; bounded."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if len(text) > MAX_VALUE_LENGTH:
        half = MAX_VALUE_LENGTH // 2
        text = f"{text[:half]} … {text[-half:]}"
    if text and _PLAIN.issuperset(text):
        return text
    return '"' + "".join(map(_escape, text)) + '"'


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
