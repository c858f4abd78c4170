"""What observers hear of a client's requests, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock import SamplingParams
from penstock.client import EngineClient
from penstock.client.beam_request import Outcome
from penstock.client.delivery import Put
from penstock.client.observer import ObservedRequest, Observers, RequestObserver
from penstock.errors import InvalidRequest, Overloaded
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.common import Pooling, TokenLogprobs, Vectors
from penstock.protocol.to_frontend import Outputs, Pooled, SequenceOutput, Welcome
from testing.scripted_engine import FAST, ScriptedEngine
from tests.shared.client.client_requests import collect, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


class Listener(RequestObserver):
    """Writes down what it hears. keeps: asks for the engine's account, and keeps requests for it.
    refusal: what it refuses requests with."""

    def __init__(self, *, keeps: bool = False, refusal: Exception | None = None) -> None:
        self.heard: list[Any] = []
        self.keeps = keeps
        self.refusal = refusal
        self.release: Callable[[], None] | None = None
        self.facts: ObservedRequest | None = None

    def request(self, prompt_tokens: int) -> RequestObserver:
        self.heard.append(("request", prompt_tokens))
        return self

    @property
    def timed(self) -> bool:
        return self.keeps

    async def admit(self) -> None:
        self.heard.append("admit")
        if self.refusal is not None:
            raise self.refusal

    def submitted(self, request: ObservedRequest) -> None:
        self.heard.append(("submitted", request.sequences))
        self.facts = request

    def first_token(self, request: ObservedRequest) -> None:
        self.heard.append("first token")

    def delta(self, tokens: int, elapsed: float | None) -> None:
        self.heard.append(("delta", tokens, elapsed is not None))

    def finished(self, reason: str, sequences: int) -> None:
        self.heard.append(("finished", reason, sequences))

    def ended(self, request: ObservedRequest) -> None:
        self.heard.append(("ended", request.generated_tokens, request.last_reason))

    def keep(self, release: Callable[[], None]) -> bool:
        self.release = release
        return self.keeps


BEGUN = [("request", 1), "admit", ("submitted", 1)]


async def test_a_generation_in_its_order(engine, client):
    listener = Listener()
    client.observe(listener)
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=5), name="a")
    [submit] = engine.submits
    assert listener.heard == BEGUN
    assert listener.facts.entered_at is None
    assert listener.facts.max_tokens == 5
    engine.entered(submit)
    await until(lambda: listener.facts.entered_at is not None)
    entered = listener.facts.entered_at
    engine.send(Outputs([SequenceOutput(submit.request, 0, [65, 66], cached_tokens=1)]))
    await anext(generation)
    engine.entered(submit)  # After a preemption: it has waited longer, but was begun before.
    engine.text(submit, "C", finish="length")
    await collect(generation)
    generation.abort()
    assert listener.heard[3:] == [
        "first token",
        ("delta", 2, False),
        ("delta", 1, True),
        ("finished", "length", 1),
        ("ended", 3, None),
    ]
    facts = listener.facts
    assert facts.reasons == {0: "length"}
    assert facts.cached_tokens == 1
    assert facts.entered_at == entered
    assert facts.begun <= entered <= facts.first_token <= facts.last_token
    assert facts.tokens_by_sequence == {0: 3}


async def test_what_a_sink_takes_counts_as_well_and_only_then(engine, client):
    listener = Listener()
    client.observe(listener)
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=5), name="a")
    [submit] = engine.submits
    taken: list[str] = []

    def sink(deltas: list[Any]) -> Put | None:
        if deltas[0].finish_reason is not None:
            return None
        taken.extend(delta.text for delta in deltas)
        return lambda: None

    generation.feed(sink)
    engine.text(submit, "A")
    engine.text(submit, "B", finish="length")
    rest = await collect(generation)
    assert "".join(taken) + rest[0][0] == "AB"
    assert sum(each[1] for each in listener.heard if each[0] == "delta") == 2
    assert listener.heard[-1] == ("ended", 2, None)


async def test_a_consumer_that_leaves_aborts_what_is_open(engine, client):
    listener = Listener()
    client.observe(listener)
    generation = await client.submit(list(b"x"), SamplingParams(n=3, max_tokens=5), name="a")
    [submit] = engine.submits
    engine.text(submit, "A", sequence=1, finish="length")
    await anext(generation)
    generation.abort()
    generation.abort()
    assert listener.heard[-2:] == [("finished", "abort", 2), ("ended", 1, "abort")]


async def test_a_request_that_is_refused_was_never_submitted(engine, client):
    listener = Listener()
    client.observe(listener)
    engine.refusing = "overloaded"
    with pytest.raises(Overloaded):
        await client.submit(list(b"x"), SamplingParams(max_tokens=5), name="a")
    assert listener.heard == [("request", 1), "admit"]


async def test_what_the_observer_refuses_reaches_no_engine(engine, client):
    client.observe(Observers([Listener(refusal=InvalidRequest("no")), Listener()]))
    for attempt in (
        client.submit(list(b"x"), SamplingParams(max_tokens=5), name="a"),
        client.search(list(b"x"), lambda _: "stop", beams=2, candidates=2, name="b"),
    ):
        with pytest.raises(InvalidRequest, match="no"):
            await attempt
    assert not engine.submits


async def test_the_client_keeps_a_request_until_it_is_released(engine, client):
    listener = Listener(keeps=True)
    client.observe(Observers([Listener(), listener]))
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=5), name="a")
    [submit] = engine.submits
    assert submit.timeline
    generation.abort()
    await until(lambda: engine.aborts)
    assert client.open_requests == 1, "the engine has not given its account yet"
    listener.release()
    assert client.open_requests == 0


async def test_a_lost_model_is_an_error(engine, client, endpoint):
    listener = Listener()
    client.observe(listener)
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=5), name="a")
    await engine.die()
    other = ScriptedEngine(endpoint, boot=b"boot-two", digest="another")
    try:
        with pytest.raises(Exception, match="another model"):
            await anext(generation)
    finally:
        await other.die()
    assert listener.heard[3:] == [("finished", "error", 1), ("ended", 0, "error")]


async def test_a_search_ends_as_one(engine, client):
    listener = Listener()
    client.observe(listener)
    entry = TokenLogprobs(-0.5, (65,), (-0.5,))

    def play(message: Any) -> None:
        engine.send(
            Outputs(
                [
                    SequenceOutput(message.request, each.index, [65], [entry], finish="length")
                    for each in message.sequences
                ]
            )
        )

    engine.script = play
    steps: list[Any] = [[[65], [66]], "stop"]

    def follow(outcomes: list[Outcome]) -> Any:
        return steps.pop(0)

    request = await client.search(list(b"x"), follow, beams=2, candidates=1, name="a")
    assert await request.done == "stop"
    request.abort()
    assert listener.heard == [
        ("request", 1),
        "admit",
        ("submitted", 2),
        "first token",
        ("delta", 1, False),
        ("delta", 1, False),
        ("delta", 1, False),
        ("finished", "stop", 1),
        ("ended", 3, "stop"),
    ]


class PoolingEngine(ScriptedEngine):
    """Serves a model that makes a vector of two numbers."""

    def welcome(self) -> Welcome:
        pooling = PoolingConfig(mode="mean", normalize=False, size=2)
        return msgspec.structs.replace(super().welcome(), pooling=pooling, pooling_tasks=("embed",))


async def test_an_input_is_submitted_and_that_is_all(endpoint):
    engine = PoolingEngine(endpoint)
    engine.script = lambda submit: engine.send(Pooled(submit.request, Vectors((2,), bytes(8))))
    client = EngineClient(endpoint, name="test", settings=FAST)
    listener = Listener(keeps=True)
    client.observe(listener)
    await client.start()
    await client.wait_connected(60)
    try:
        result = await client.pool(list(b"abc"), Pooling("embed"), name="p")
        assert result.values() == [0.0, 0.0]
        assert engine.submits[0].timeline
        assert listener.heard == [("request", 3), "admit", ("submitted", 1)]
        assert listener.facts.timing.complete
    finally:
        await client.close()
        await engine.die()
