"""`penstock chat` and `run` with pictures and sounds: what they send."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.answers import Facts, Question
from penstock.cli.chat import Chat, ChatHistory
from penstock.cli.main import main
from penstock.cli.media_files import media_part
from penstock.errors import InvalidRequest
from tests.shared.media.pictures import picture, saved


class Listener:
    """Answers `yes`, and keeps what it was asked."""

    name, place = "a-model", "here"

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def answer(self, question: Question, facts: Facts) -> Iterator[str]:
        self.asked.append(question)
        facts.add("yes")
        yield "yes"

    def close(self) -> None: ...


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "a.png"
    file.write_bytes(saved(picture()))
    return file


def url_of(file: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def test_a_picture_goes_with_the_next_message(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = f"/image {file}\nwhat is it?\nand now?\n/image {file}.none\n/image\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    source, history = Listener(), ChatHistory()
    Chat(source, history, {}).run()
    first, second = (question.messages for question in source.asked)
    assert first is not None
    assert second is not None
    shown = {"type": "image_url", "image_url": {"url": url_of(file)}}
    asked = [shown, {"type": "text", "text": "what is it?"}]
    assert first == [{"role": "user", "content": asked}]
    assert second[0] == first[0]
    assert second[2] == {"role": "user", "content": "and now?"}
    complaints = capsys.readouterr().err
    assert "a.png.none can't be read" in complaints
    assert "/image needs the name of a FILE" in complaints
    assert "*(a picture)*\n\nwhat is it?" in history.as_markdown()
    assert json.loads(history.as_json())["messages"][0]["content"][0] == shown


def test_sounds_go_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(b"a sound")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"/audio {file}\nwhat was it?\n/audio\n"))
    source, history = Listener(), ChatHistory()
    Chat(source, history, {}).run()
    (question,) = source.asked
    assert question.messages is not None
    part = question.messages[0]["content"][0]
    assert part["type"] == "audio_url"
    kind, _, data = part["audio_url"]["url"].partition(";base64,")
    assert kind in ("data:audio/x-wav", "data:audio/wav")
    assert base64.b64decode(data) == b"a sound"
    assert "*(a sound)*\n\nwhat was it?" in history.as_markdown()
    assert "/audio needs the name of a FILE" in capsys.readouterr().err


def test_files_that_cant_be_sent(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="can't be read"):
        media_part("image", str(tmp_path))
    large = tmp_path / "large.png"
    with open(large, "wb") as out:
        out.truncate((64 << 20) + 1)
    with pytest.raises(InvalidRequest, match="at most"):
        media_part("image", str(large))


def test_run_needs_a_conversation(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--url", "http://127.0.0.1:9", "x", "--raw", "--image", str(file)]) == 2
    assert "--image is for a conversation" in capsys.readouterr().err
