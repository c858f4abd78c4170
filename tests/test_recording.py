"""A recording ends, whatever the server does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.recording.asking import Stalled, ask
from tests.recording.case import GENERATE, Case

WELL = [Case(f"well {number}", GENERATE, "/well", {"n": number}) for number in range(5)]
STUCK = Case("stuck", GENERATE, "/stuck", {})


class Hanging:
    """Answers all but /stuck."""

    stderr = "its last words"

    def __init__(self) -> None:
        self.left = left = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/stuck":
                    left.wait(60)
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.left.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Hanging]:
    server = Hanging()
    yield server
    server.close()


def test_all_are_answered(server: Hanging) -> None:
    answers = ask(server, WELL, 2)
    assert set(answers) == {case.name for case in WELL}
    assert {answer["status"] for answer in answers.values()} == {200}


def test_a_request_without_an_answer_is_named_and_not_waited_for(server: Hanging) -> None:
    with pytest.raises(Stalled, match=r"asked for: stuck\n--- the server's log\nits last words"):
        ask(server, [*WELL, STUCK], 2, stall=0.5)


def test_what_a_request_raises_names_its_case(server: Hanging) -> None:
    server.left.set()
    with pytest.raises(ConnectionError) as raised:
        ask(server, [STUCK], 1)
    assert raised.value.__notes__ == ["the case: stuck"]
