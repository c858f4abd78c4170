"""What the commands draw, without a system: top, status, a conversation's file, the terminal."""

from __future__ import annotations

import io
import json

import pytest

from penstock.cli.answers import RemoteModel
from penstock.cli.chat import Chat, ChatHistory
from penstock.cli.http_client import HttpClient
from penstock.cli.status import _table
from penstock.cli.system_report import SystemReport, bar
from penstock.cli.terminal import Style, clip, counted, duration, printable
from penstock.cli.top_frame import History, frame, sparkline

PLAIN = Style(io.StringIO())


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Address:
    url = "http://127.0.0.1:8000"


def state(**fields: object) -> SystemReport:
    engine = {
        "running": 3,
        "waiting": 1,
        "blocks_total": 100,
        "blocks_free": 25,
        "blocks_cached": 40,
        "block_size": 16,
        "workers": 1,
        "frontends": 2,
        "steps": 10,
        "tokens_generated": 100,
        "tokens_computed": 300,
        "compute_seconds": 1.0,
        **fields,
    }
    gateway = {"pid": 7, "connected": True, "open_requests": 4, "draining": False, "uptime": 70.0}
    raw = {"ready": True, "reason": "", "model": "m", "boot": "b", "engine": engine}
    return SystemReport({**raw, "status_age": 0.0, "gateway": gateway})


def test_rates_are_between_two_words_of_the_engine_core() -> None:
    history = History()
    history.add(state(), 10.0)
    later = state(steps=30, tokens_generated=180, tokens_computed=900, compute_seconds=2.5)
    history.add(later, 12.0)
    assert (history.rates.generated, history.rates.computed) == (40.0, 300.0)
    assert (history.rates.steps, history.rates.busy) == (10.0, 0.75)
    history.add(later, 12.01)  # the same word once more says nothing new
    assert history.rates.generated == 40.0


def test_an_engine_core_that_came_back_does_not_count_backwards() -> None:
    history = History()
    history.add(state(), 10.0)
    again = state(steps=1, tokens_generated=2)
    again.raw["boot"] = "c"
    history.add(again, 11.0)
    assert history.rates.generated == 0.0


@pytest.mark.parametrize("columns", [24, 40, 80, 200])
def test_a_view_fits_its_terminal(columns: int, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    history = History()
    for number in range(300):
        history.add(state(tokens_generated=100 + number * number), 10.0 + number)
    lines = frame(history, "http://a-rather-long-host-name.example:8000", 1.0, PLAIN)
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("KV blocks") for line in lines)
    history.lost("nobody answers at http://a-rather-long-host-name.example:8000: refused")
    lines = frame(history, "http://a-rather-long-host-name.example:8000", 1.0, PLAIN)
    assert max(map(len, lines)) <= columns
    assert lines[1].startswith("nobody answers")


def test_gateways_that_answer_in_turn_are_all_shown_and_then_forgotten() -> None:
    history = History()
    other = state()
    other.gateway["pid"] = 8
    history.add(state(), 10.0)
    history.add(other, 11.0)
    assert sorted(history.gateways) == [7, 8]
    history.add(other, 75.0)
    assert sorted(history.gateways) == [8]


def test_status_says_it_in_words(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = _table(Address(), state())
    assert "ready\n" in text
    assert "75 of 100 (75 %) of 16 tokens, 40 cached" in text
    assert "1 worker, 2 front ends" in text
    several = state()
    several.raw["engines"] = [{"ready": True}, {"ready": False}]
    assert "2 engine cores (1 ready), 1 worker, 2 front ends" in _table(Address(), several)
    down = SystemReport({"ready": False, "reason": "the worker is loading the model"})
    assert "not ready: the worker is loading the model" in _table(Address(), down)


def two_models(tokens: int = 100) -> SystemReport:
    """What a gateway of two models says, one of which isn't loaded: no numbers of `engine`."""
    report = state()
    engine = {"model": "first", "running": 3, "waiting": 1, "blocks_total": 100, "blocks_used": 75}
    report.raw.update(engine=None, model=None)
    report.raw["engines"] = [engine | {"tokens_generated": tokens}, {"model": None}]
    report.raw["models"] = [
        {"model": "first", "state": "ready", "waiting": 0},
        {"model": "second", "state": "absent", "waiting": 2},
    ]
    return report


def test_status_shows_each_of_several_models(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.split() for line in _table(Address(), two_models()).splitlines()]
    assert ["first", "ready", "3", "1", "75", "of", "100", "100"] in lines
    assert ["second", "absent", "0", "2", "-", "0"] in lines
    assert "no model yet" not in _table(Address(), two_models())


def test_top_shows_each_of_several_models(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    history = History()
    history.add(two_models(), 10.0)
    history.add(two_models(tokens=180), 12.0)
    lines = [line.split() for line in frame(history, "http://h", 1.0, PLAIN)]
    assert lines[0][:3] == ["penstock", "2", "models"]
    assert ["first", "ready", "3", "1", "75", "of", "100", "40.0"] in lines
    assert ["second", "absent", "0", "2", "-", "0.0"] in lines


def test_colours_are_for_terminals_that_want_them(monkeypatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert Style(Screen()).paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert Style(io.StringIO()).paint("x", "red") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style(Screen()).paint("x", "red") == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Style(Screen()).paint("x", "red") == "x"


def test_a_models_text_gives_no_orders_to_the_terminal() -> None:
    assert printable("a\x1b[2J\x07b\r\x9bc\n\té") == "a[2Jbc\n\té"


def test_small_things() -> None:
    assert [duration(s) for s in (5, 65, 3700, 90_000)] == [
        "5 s",
        "1 min 5 s",
        "1 h 1 min",
        "1 d 1 h",
    ]
    assert (counted(1, "worker"), counted(0, "worker")) == ("1 worker", "0 workers")
    assert clip("abcdef", 4) == "abc…"
    assert bar(0.5, 10) == "[####....]"
    assert (len(sparkline([0, 1, 2])), sparkline([0, 0])) == (3, "▁▁")


def test_a_conversation_and_its_files(tmp_path) -> None:
    talk = ChatHistory("Be short.")
    talk.ask("Hello")
    talk.answered("Hi.")
    talk.ask("Again")
    talk.answered("")  # failed: the question is taken back
    roles = [message["role"] for message in talk.messages()]
    assert roles == ["system", "user", "assistant"]
    saved = json.loads(talk.save(str(tmp_path / "talk.json")).read_text())
    assert saved == {"messages": talk.messages()}
    assert "## user\n\nHello\n" in talk.save(str(tmp_path / "talk.md")).read_text()
    talk.clear()
    assert talk.messages() == [{"role": "system", "content": "Be short."}]


def test_a_command_that_the_chat_lacks_points_to_its_help(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("/foo\n/sav\n"))
    source = RemoteModel(HttpClient("http://127.0.0.1:9", None, 1.0), "m")
    assert Chat(source, ChatHistory(), {}).run() == 1
    said = capsys.readouterr().err
    assert "there is no /foo; /help lists what there is" in said
    assert "there is no /sav; did you mean /save?" in said
