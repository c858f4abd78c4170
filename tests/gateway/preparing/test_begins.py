"""How a preparer begins."""

from __future__ import annotations

import socket
import time

import pytest

from penstock.process import isolated
from penstock.process.isolated_child import read_frame, write_frame
from penstock_gateway.preparing.forks import PreparerForks
from penstock_gateway.preparing.process import PreparerProcess
from penstock_gateway.preparing.wire import (
    MAX_FRAME,
    HomeAnswer,
    HomeQuestion,
    OpenBody,
    OpenedBody,
    encode,
)

pytestmark = pytest.mark.timeout(60)

BODY = OpenBody(0, b"{}", [], "a", background=False, digested=False, cpu=2.0)


class Slow:
    """Needs more processor time to begin than a process that stands still is given by the clock."""

    def warm(self) -> None:
        pass

    def run(self, connection: socket.socket) -> None:
        while time.process_time() < 1.0:
            pass
        while read_frame(connection.fileno(), MAX_FRAME) is not None:
            write_frame(connection.fileno(), encode(OpenedBody(b"{}", ["prompt"])))


async def nothing_is_asked(question: HomeQuestion) -> HomeAnswer:
    raise AssertionError(question)


async def test_one_that_begins_slowly_is_no_sign_that_others_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process that forks waits for the next fork meanwhile, and isn't ended with all it has."""
    monkeypatch.setattr(isolated.Standstill, "every", 0.02)
    forks = PreparerForks(Slow())
    try:
        preparer = PreparerProcess(forks)
        assert await preparer.ask(BODY, BODY.cpu, nothing_is_asked) == OpenedBody(b"{}", ["prompt"])
        assert forks.is_open
    finally:
        forks.close()
