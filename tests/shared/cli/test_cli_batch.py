"""`penstock batch` where what it asks breaks off, and where it is itself broken off."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli import batch
from penstock.cli.main import main

WHOLE = b'{"choices": []}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that gives each connection the next answer, then whole ones. Yields its URL."""
    left = list(answers)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(left.pop(0) if left else HEAD % len(WHOLE) + WHOLE)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def write(file: Path) -> Path:
    file.write_text('{"custom_id": "a", "url": "/v1/completions", "body": {}}\n')
    return file


def test_half_an_answer_is_none(tmp_path: Path) -> None:
    """Its server was killed while it sent it: it is asked again."""
    file = write(tmp_path / "in.jsonl")
    with answering(HEAD % len(WHOLE) + WHOLE[:5]) as url:
        assert main(["batch", "--url", url, str(file)]) == 0
    (line,) = (tmp_path / "in.results.jsonl").read_text().splitlines()
    assert json.loads(line)["response"]["body"] == {"choices": []}


def test_patience_begins_where_answers_end(tmp_path: Path, monkeypatch) -> None:
    """A request that took longer than that, and then broke off, is asked again."""
    now = [1000.0]
    monkeypatch.setattr(batch.time, "monotonic", lambda: now[0])
    post = batch.HttpClient.post_once

    def slow(*words: object) -> object:
        now[0] += 2 * batch.PATIENCE
        return post(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(batch.HttpClient, "post_once", slow)
    file = write(tmp_path / "in.jsonl")
    with answering(b"") as url:
        assert main(["batch", "--url", url, str(file)]) == 0


def test_its_own_file_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = write(tmp_path / "in.jsonl")
    before = file.read_bytes()
    with answering() as url:
        assert main(["batch", "--url", url, str(file), "-o", str(file)]) == 2
    assert "-o" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_a_file_that_is_no_partial_one_is_left(tmp_path: Path, capsys) -> None:
    file = write(tmp_path / "in.jsonl")
    other = tmp_path / "in.results.jsonl.partial"
    other.write_text("somebody's notes\n")
    with answering() as url:
        assert main(["batch", "--url", url, str(file)]) == 2
    assert "another output" in capsys.readouterr().err
    assert other.read_text() == "somebody's notes\n"


_BROKEN_OFF = """
import sys
from penstock.cli.main import main
from penstock.supervisor import system

def stopped(config, options):
    options.announce("http://127.0.0.1:9", None)
    return True

system.run_system = stopped
sys.exit(main(["batch", "model", sys.argv[1]]))
"""


def test_broken_off_it_says_how_to_go_on(tmp_path: Path) -> None:
    """Its system has ended, by Ctrl-C, while lines were under way."""
    file = write(tmp_path / "in.jsonl")
    ended = subprocess.run(
        [sys.executable, "-c", _BROKEN_OFF, str(file)], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1, ended
    assert "run the same command again" in ended.stderr


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl")
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    with answering() as url:
        assert main(["batch", "--url", url, str(file)]) == 0
    (line,) = (tmp_path / "in.results.jsonl").read_text().splitlines()
    assert json.loads(line)["custom_id"] == "a"
