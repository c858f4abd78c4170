"""`penstock run`: how long an answer may be, against a server of a few lines."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.cli.run import LONGEST

CONTEXT = 8192


class Handler(BaseHTTPRequestHandler):
    """Counts 100 tokens in any prompt, and ends every answer at its length."""

    def do_GET(self) -> None:
        card = {
            "id": "m",
            "chat_params": {"min_p": 0.1, "top_k": 5, "max_tokens": 30, "system": "Be brief."},
        }
        self._answer(card if self.path == "/v1/models/m" else {"data": [card]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, body))  # type: ignore[attr-defined]
        if self.path == "/tokenize":
            self._answer({"count": 100, "max_model_len": self.server.context})  # type: ignore[attr-defined]
            return
        if 100 + body.get("max_tokens", 0) > self.server.context:  # type: ignore[attr-defined]
            self._answer({"error": {"message": "more than the context"}}, status=400)
            return
        delta = {"delta": {"content": "one"}, "text": "one", "finish_reason": "length"}
        usage = {"prompt_tokens": 100, "completion_tokens": body.get("max_tokens", 7)}
        self._answer({"choices": [delta], "usage": usage}, stream=True)

    def _answer(self, value: object, *, stream: bool = False, status: int = 200) -> None:
        text = json.dumps(value)
        raw = (f"data: {text}\n\ndata: [DONE]\n\n" if stream else text).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.context = [], CONTEXT  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(server: Any, *arguments: str) -> int | None:
    """max_tokens of the request."""
    assert main(["run", "--url", f"http://127.0.0.1:{server.server_port}", *arguments]) == 0
    return server.asked[-1][1].get("max_tokens")


@pytest.mark.parametrize("raw", [(), ("--raw",)])
def test_an_answer_has_an_end_where_nobody_says_one(server, capsys, raw) -> None:
    assert run(server, *raw, "Hello") == LONGEST
    told = capsys.readouterr()
    assert told.out == "one\n"
    assert f"cut off after {LONGEST} tokens; --max-tokens N allows more" in told.err
    assert [path for path, _ in server.asked if path == "/tokenize"] == [], "it is one request"
    server.context = 300
    assert run(server, *raw, "Hello") == 200, "no more than the context leaves"


def test_what_is_said_holds(server, capsys) -> None:
    assert run(server, "Hello", "--max-tokens", "5") == 5
    assert run(server, "Hello", "--max-tokens", "-1") is None
    assert run(server, "Hello", "--raw", "--max-tokens", "-1") == CONTEXT - 100
    assert capsys.readouterr().err == ""


def test_a_chat_adds_what_the_server_says_and_what_is_given_wins(
    server, capsys, monkeypatch
) -> None:
    def asked(*flags: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["chat", "--url", url, *flags]) == 0
        body = server.asked[-1][1]
        said = "Be long." if "--system" in flags else "Be brief."
        assert body["messages"][0] == {"role": "system", "content": said}
        assert "system" not in body
        return {name: body.get(name) for name in ("min_p", "top_k", "max_tokens")}

    assert asked() == {"min_p": 0.1, "top_k": 5, "max_tokens": 30}
    assert asked("--system", "Be long.") == {"min_p": 0.1, "top_k": 5, "max_tokens": 30}
    assert asked("--top-k", "7") == {"min_p": 0.1, "top_k": 7, "max_tokens": 30}
    assert asked("--max-tokens", "9") == {"min_p": 0.1, "top_k": 5, "max_tokens": 9}
    assert asked("--max-tokens", "-1") == {"min_p": 0.1, "top_k": 5, "max_tokens": None}


def test_a_bad_number_is_refused(server, capsys) -> None:
    assert main(["run", "--url", "http://127.0.0.1:9", "Hello", "--max-tokens", "-2"]) == 2
    assert "max_tokens must be a whole number" in capsys.readouterr().err
