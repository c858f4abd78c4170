"""Many inputs of one request share the turns of the event loop with everybody else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client import turn_budget
from penstock.client.pool_request import PoolResult
from penstock.protocol.common import Pooling, Vectors
from penstock.request.terms import Terms
from penstock_gateway.generate import chunked_reply
from penstock_gateway.pooling.endpoint import Call
from tests.gateway.heartbeat.engines import PoolingEngine
from tests.gateway.loop_turns import EACH, LoopTurns

INPUTS = 60


def call_of(client: Any) -> Call:
    asked = SimpleNamespace(engine=client, client=client, name="m")
    return Call(
        None,  # type: ignore[arg-type]
        asked,  # type: ignore[arg-type]
        Terms(fingerprint="f"),
        "r",
        "id",
        None,
        lease=None,  # type: ignore[arg-type]
    )


@pytest.fixture
async def turns(monkeypatch: pytest.MonkeyPatch) -> Any:
    turns = LoopTurns()
    monkeypatch.setattr(turn_budget.time, "thread_time", lambda: turns.now)
    monkeypatch.setattr(chunked_reply.time, "perf_counter", lambda: turns.now)
    yield turns
    turns.stop()


async def test_inputs_are_submitted_in_turns(turns: LoopTurns) -> None:
    class Slow(PoolingEngine):
        async def pool(self, *given: Any, **named: Any) -> PoolResult:
            turns.work()
            return PoolResult(Vectors((1,), bytes(4)), 1)

    call = call_of(Slow())
    results = await call.pool(await call.read([[5]] * INPUTS), Pooling("embed"))
    assert len(results) == INPUTS == turns.done.total()
    assert max(turns.done.values()) <= 1 + turn_budget.TURN / EACH


async def test_short_texts_are_tokenised_in_turns(
    turns: LoopTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = PoolingEngine()
    tokenizer = engine.text.tokenizer

    class Slow:
        def encode_typed(self, *given: Any, **named: Any) -> Any:
            turns.work()
            return tokenizer.encode_typed(*given, **named)

    monkeypatch.setattr(engine, "text", SimpleNamespace(tokenizer=Slow(), template=None))
    inputs = await call_of(engine).read(["a"] * INPUTS)
    assert [each.prompt_token_ids for each in inputs] == [[*b"a"]] * INPUTS
    assert max(turns.done.values()) <= 1 + chunked_reply.TURN / EACH
