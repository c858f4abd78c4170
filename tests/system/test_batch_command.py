"""`penstock batch`: every line answered once, broken off and taken up again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testing.serving import Server, wait_until

pytestmark = [pytest.mark.timeout(600)]
LINES = 60


def write(file: Path, count: int = LINES, **more: Any) -> Path:
    def line(number: int) -> str:
        body = {"prompt": f"Line {number} says", "max_tokens": 24, "seed": number, **more}
        return json.dumps({"custom_id": f"line-{number}", "url": "/v1/completions", "body": body})

    file.write_text("".join(f"{line(number)}\n" for number in range(count)))
    return file


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "penstock", "batch", *map(str, words)]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300)


def texts(output: Path) -> dict[str, str]:
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == [f"line-{n}" for n in range(len(lines))]
    assert {line["response"]["status_code"] for line in lines} == {200}
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in lines}


def test_broken_off_at_any_time_it_goes_on(tiny_model: str, tmp_path: Path) -> None:
    """A kill -9 leaves it no time to say where it was."""
    file = write(tmp_path / "in.jsonl")
    partial = tmp_path / "out.jsonl.partial"
    words = (tiny_model, file, "-o", tmp_path / "out.jsonl", "--concurrency", 2)
    process = subprocess.Popen(command(*words), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: partial.exists() and partial.read_bytes().count(b"\n") > 5)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = partial.read_bytes()
    assert 0 < kept.count(b"\n") < LINES
    partial.write_bytes(kept[:-3])  # As if the last line had been broken off, too.
    ended = run(*words)
    assert ended.returncode == 0, ended.stderr
    assert not partial.exists()
    whole = run(tiny_model, file, "-o", tmp_path / "whole.jsonl")
    assert whole.returncode == 0, whole.stderr
    assert texts(tmp_path / "out.jsonl") == texts(tmp_path / "whole.jsonl")
    assert len(texts(tmp_path / "whole.jsonl")) == LINES


def test_by_a_running_system(tiny_model: str, tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", 5)
    with Server(tiny_model) as server:
        ended = run("--url", server.url, file)
        assert ended.returncode == 0, ended.stderr
        assert "5 lines, 0 of them with an error" in ended.stderr
        assert len(texts(tmp_path / "in.results.jsonl")) == 5
        wrong = run("--url", server.url, write(tmp_path / "wrong.jsonl", 2, temperature=-1))
        assert wrong.returncode == 1
        assert "2 lines, 2 of them with an error" in wrong.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no request"),
        ("nonsense\n", "line 1: it is no JSON"),
        ('{"custom_id": "a", "url": "/x", "body": {}}\n', "line 1: url is '/x'; allowed: /v1/chat"),
        ('\n{"custom_id": "", "url": "/v1/completions", "body": {}}\n', "line 2: custom_id"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": {"stream": true}}\n', "stream"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": {}}\n' * 2, "line 2: custom_id"),
    ],
)
def test_wrong_files(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(content)
    ended = run("model", file)
    assert ended.returncode != 0
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_answers_of_another_file_are_not_taken(tmp_path: Path) -> None:
    partial = tmp_path / "in.results.jsonl.partial"
    partial.write_text('{"file": "another"}\n')
    ended = run("model", write(tmp_path / "in.jsonl", 1))
    assert ended.returncode != 0
    assert "other contents" in ended.stderr
    assert partial.exists()
