"""Structured logs: each record is one line that an independent parser reads back."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.process import logs
from tests.met import met

_PAIR = re.compile(r'([A-Za-z_][A-Za-z_0-9]*)=("(?:[^"\\]|\\.)*"|[^ "]*)(?: |$)')
_ESCAPE = re.compile(r"\\(u[0-9a-f]{4}|U[0-9a-f]{8}|.)")
_NAMED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


def read_logfmt(line: str) -> dict[str, str]:
    """A logfmt line as a dict; fails on anything between the pairs."""
    pairs, at = {}, 0
    while at < len(line):
        match = _PAIR.match(line, at)
        assert match, f"no pair at {line[at:]!r}"
        key, value = match.groups()
        if value.startswith('"'):
            value = _ESCAPE.sub(_unescape, value[1:-1])
        assert key not in pairs
        pairs[key] = value
        at = match.end()
    return pairs


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    return chr(int(code[1:], 16)) if code[0] in "uU" else _NAMED[code]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    stream = io.StringIO()
    logs.setup("gateway 0", stream=stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:], root.level, logging.raiseExceptions = handlers, level, raising


def test_a_record_holds_time_level_process_event_and_fields(stream: io.StringIO) -> None:
    logs.get("penstock.somewhere").info("worker ready", rank=0, seconds=1.25, name='a "b" = c')
    record = read_logfmt(stream.getvalue().rstrip("\n"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("time"))
    assert record == {
        "level": "info",
        "process": "gateway 0",
        "event": "worker ready",
        "rank": "0",
        "seconds": "1.25",
        "name": 'a "b" = c',
    }


def json_line(*, level: str = "info", **fields: object) -> list[dict[str, object]]:
    """What a process with JSON logs writes of a debug, an info and a warning record."""
    root = logging.getLogger()
    handlers, before, stream = root.handlers[:], root.level, io.StringIO()
    try:
        logs.setup("engine", level=level, form="json", stream=stream)
        log = logs.get("penstock.somewhere")
        for tell in (log.debug, log.info, log.warning):
            tell("worker ready", **fields)
    finally:
        logging.captureWarnings(False)
        root.handlers[:], root.level = handlers, before
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_as_json_numbers_stay_numbers() -> None:
    fields = {"rank": 0, "seconds": 1.25, "ok": True, "what": None, "text": 'a\u2028"\n'}
    record = json_line(**fields, path=Path("/a"))[0]
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "info", "process": "engine", "event": "worker ready",
        **fields, "path": "/a",
    }  # fmt: skip
    assert json_line(seconds=float("nan"))[0]["seconds"] == "nan"
    assert len(str(json_line(text="a" * 10_000)[0]["text"])) < logs.MAX_VALUE_LENGTH + 10


@pytest.mark.parametrize(
    ("level", "lines"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 0)]
)
def test_the_level_is_the_least_that_is_shown(level: str, lines: int) -> None:
    assert len(json_line(level=level)) == lines


def test_other_loggers_come_out_alike(stream: io.StringIO) -> None:
    logging.getLogger("third.party").warning("half %d", 2, extra={"reason": "tea time"})
    record = read_logfmt(stream.getvalue().rstrip("\n"))
    assert (record["event"], record["logger"], record["reason"], record["level"]) == (
        "half 2",
        "third.party",
        "tea time",
        "warning",
    )


def test_a_traceback_stays_on_its_line(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError:
        logs.get("penstock").error("failed", exception=True)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert read_logfmt(lines[0])["exception"].endswith("RuntimeError: two\nlines")


def test_stdout_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers = root.handlers[:]
    try:
        logs.setup("engine")
        logs.get("penstock").warning("something")
    finally:
        root.handlers[:] = handlers
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "event=something" in captured.err


@given(st.text(max_size=200) | st.text(' ab"=\\\n', max_size=40))
def test_any_text_is_one_line_and_reads_back(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    line = logs.LogfmtFormatter("x").format(
        logging.makeLogRecord(
            {"msg": "%s", "args": (text,), "levelname": "INFO", "name": "penstock"}
        )
    )
    assert len(line.splitlines()) == 1
    assert read_logfmt(line)["event"] == text
    met("what must be quoted", set(text) & set(' "=\\\n'))


def test_a_huge_value_is_cut_in_the_middle() -> None:
    quoted = logs.quote("a" * 10_000 + "end")
    assert len(quoted) < logs.MAX_VALUE_LENGTH + 10
    assert quoted.endswith('end"')


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


def record_of(event: str, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("penstock.x", level, "", 0, "%s", (event,), None)
    record.penstock_fields = fields
    return record


@pytest.mark.parametrize(
    ("form", "stream", "kind"),
    [
        ("auto", Terminal(), logs.TextFormatter),
        ("auto", io.StringIO(), logs.LogfmtFormatter),
        ("text", io.StringIO(), logs.TextFormatter),
        ("logfmt", Terminal(), logs.LogfmtFormatter),
        ("json", Terminal(), logs.JsonFormatter),
    ],
)
def test_a_terminal_gets_lines_to_read(form: str, stream: io.StringIO, kind: type) -> None:
    assert type(logs.formatter("engine", form, stream)) is kind


def test_lines_to_read_have_time_process_event_and_fields() -> None:
    line = logs.formatter("engine", "text").format(record_of("worker ready", rank=0, name="a b"))
    assert re.fullmatch(r'\d\d:\d\d:\d\d engine      worker ready  rank=0 name="a b"', line)
    warned = logs.formatter("engine", "text").format(record_of("late", logging.WARNING))
    assert warned.endswith("engine      warning: late")


def test_colours_are_for_terminals_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = logs.formatter("engine", "auto", Terminal()).format(record_of("gone", logging.ERROR))
    assert "\x1b[31merror: gone\x1b[0m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in logs.formatter("engine", "auto", Terminal()).format(record_of("gone"))


def test_what_a_client_sent_moves_no_cursor() -> None:
    line = logs.formatter("engine", "text").format(record_of("bad \x1b[2J\n", given="\x1b[2J"))
    assert line.isprintable()
