"""Large replies of /completion are written in pieces, with turns for others between."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_dialects.llamacpp import reply
from penstock_gateway.app import create_app
from penstock_gateway.generate import chunked_reply
from tests.gateway.heartbeat.engines import TellingEngine
from tests.gateway.loop_turns import LoopTurns

TOKENS = 2000


class Writing(LoopTurns):
    """An encoder that tells what it wrote in which turn of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self._encoder = reply.encoder

    def encode(self, given: Any) -> bytes:
        written = self._encoder.encode(given)
        self.work()
        self.sizes.append(len(written))
        return written


@pytest.fixture
async def writing(monkeypatch: pytest.MonkeyPatch) -> Any:
    writing = Writing()
    monkeypatch.setattr(reply, "encoder", writing)
    monkeypatch.setattr(chunked_reply, "encoder", writing)
    monkeypatch.setattr(chunked_reply.time, "perf_counter", lambda: writing.now)
    yield writing
    writing.stop()


async def asked(**fields: Any) -> httpx.Response:
    app = create_app(TellingEngine(TOKENS), GatewayConfig())  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.post("/completion", json=fields)
    assert answer.status_code == 200, answer.text
    return answer


async def test_probabilities_are_written_in_pieces(writing: Writing) -> None:
    answer = await asked(prompt="a", n_predict=TOKENS, n_probs=20)
    assert len(answer.json()["completion_probabilities"]) == TOKENS
    assert max(writing.sizes) < len(answer.content) / 20
    assert max(writing.done.values()) <= 2


async def test_probabilities_that_come_together_are_streamed_in_pieces() -> None:
    answer = await asked(prompt="a", n_predict=TOKENS, n_probs=20, stream=True)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    told = [len(each.get("completion_probabilities", ())) for each in events]
    assert sum(told) == TOKENS
    assert max(told) <= chunked_reply.STEP
    assert [token for each in events for token in each["tokens"]] == [
        ord("a") + place % 26 for place in range(TOKENS)
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_many_answers_that_end_are_written_in_turns(writing: Writing, stream: bool) -> None:
    prompt = "b" * 5000
    answer = await asked(prompt=prompt, n_predict=10, n_cmpl=40, stream=stream)
    if stream:
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
        ended = [each for each in events if each["stop"]]
    else:
        ended = answer.json()
    assert [each["index"] for each in ended] == list(range(40))
    assert {each["prompt"] for each in ended} == {prompt}
    assert max(writing.done.values()) <= 2
