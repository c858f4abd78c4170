"""Text that goes past deltas to a sink of its own: the same text, counts and blame, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock import SamplingParams
from penstock.client import SequenceDelta
from penstock.client.delivery import Put
from penstock.client.emitted import KnownTokens
from penstock.client.generation import Generation
from penstock.client.observer import ObservedRequest, RequestObserver
from penstock.protocol.to_frontend import Outputs, SequenceOutput
from penstock.request.terms import Terms
from tests.shared.client.client_requests import collect, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


@dataclass
class Wire:
    """Both sinks of a request. out: what they have put onto the wire, in order, and which did."""

    willing: bool = True
    """Whether the sink of text takes some."""
    out: list[tuple[str, str]] = field(default_factory=list)
    _held: str = ""

    def deltas(self, deltas: list[SequenceDelta]) -> Put | None:
        if any(delta.finish_reason is not None for delta in deltas):
            return None
        text = "".join(delta.text for delta in deltas)
        return lambda: self.out.append(("deltas", text))

    def take(self, text: str, tokens: int, now: float) -> bool:
        if not self.willing or self._held:
            return False
        self._held = text
        return True

    def put(self) -> None:
        self.out.append(("text", self._held))
        self._held = ""

    def came(self, *texts: str) -> Callable[[], bool]:
        return lambda: [text for _, text in self.out] == list(texts)


async def begun(
    client: Any, engine: Any, wire: Wire, params: SamplingParams, **more: Any
) -> tuple[Generation, Any, asyncio.Task[Any]]:
    """A request whose first token, "a", has gone to the wire, which may take text from here on; its
    consumer waits."""
    generation = await client.submit(list(b"x"), params, name="r", **more)
    submit = engine.submits[-1]
    generation.feed(wire.deltas)
    following = asyncio.create_task(anext(generation))
    await until(lambda: generation._waited_for)
    generation.feed_text(wire)
    engine.text(submit, "a")
    await until(wire.came("a"))
    return generation, submit, following


async def test_text_goes_past_deltas_and_the_end_does_not(engine, client):
    wire = Wire()
    generation, submit, following = await begun(client, engine, wire, SamplingParams(max_tokens=9))
    engine.text(submit, "b")
    await until(wire.came("a", "b"))
    engine.text(submit, "cd")
    await until(wire.came("a", "b", "cd"))
    assert [way for way, _ in wire.out] == ["deltas", "text", "text"]
    assert not following.done()
    engine.text(submit, "e", finish="length")
    [last] = await following
    assert (last.text, last.finish_reason) == ("e", "length")
    assert not await collect(generation)
    assert client.open_requests == 0


async def test_half_a_character_waits_for_the_other_half(engine, client):
    wire = Wire()
    generation, submit, following = await begun(client, engine, wire, SamplingParams(max_tokens=9))
    whole = "ü".encode()
    for byte in whole:
        engine.send(Outputs([SequenceOutput(submit.request, 0, [byte])]))
    await until(wire.came("a", "ü"))
    generation.abort()
    await following


async def test_what_it_does_not_take_is_merged_and_later_text_goes_that_way_again(engine, client):
    wire = Wire()
    generation, submit, following = await begun(client, engine, wire, SamplingParams(max_tokens=9))
    wire.willing = False
    engine.text(submit, "b")
    await until(wire.came("a", "b"))
    wire.willing = True
    engine.text(submit, "c")
    await until(wire.came("a", "b", "c"))
    assert [way for way, _ in wire.out] == ["deltas", "deltas", "text"]
    generation.abort()
    await following


async def test_tokens_of_messages_that_wait_go_out_together(engine, client):
    wire = Wire()
    generation, submit, following = await begun(client, engine, wire, SamplingParams(max_tokens=9))
    with generation.holder.transport.lock:  # Nothing is read, so that both wait.
        for text in "bc":
            engine.text(submit, text)
        time.sleep(0.2)  # For ZeroMQ's threads, which nobody can ask; later, it shows less.
    await until(wire.came("a", "bc"))
    generation.abort()
    await following


async def test_text_leaves_before_what_came_behind_it(engine, client):
    """Two outputs of one message: while the first waits to go out, the second can't be taken."""
    wire = Wire()
    generation, submit, following = await begun(client, engine, wire, SamplingParams(max_tokens=9))
    outputs = [SequenceOutput(submit.request, 0, [token]) for token in b"bcd"]
    engine.send(Outputs(outputs))
    await until(wire.came("a", "b", "cd"))
    assert [way for way, _ in wire.out] == ["deltas", "text", "deltas"]
    generation.abort()
    await following


class Counts(RequestObserver):
    """Adds up what it hears of one request."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bool]] = []
        self.facts: ObservedRequest | None = None

    def request(self, prompt_tokens: int) -> RequestObserver:
        return self

    def submitted(self, request: ObservedRequest) -> None:
        self.facts = request

    def delta(self, tokens: int, elapsed: float | None) -> None:
        assert elapsed is None or 0 <= elapsed < 240, "seconds since the token before"
        self.heard.append((tokens, elapsed is not None))


@pytest.mark.parametrize("end", ["length", "abort"])
async def test_an_observer_hears_of_it_as_of_deltas(engine, client, end: str):
    found = []
    for passes in (True, False):
        counts, wire = Counts(), Wire(willing=passes)
        client.observe(counts)
        params = SamplingParams(max_tokens=9)
        generation, submit, following = await begun(client, engine, wire, params, timed=True)
        for text in ("b", "cd"):
            engine.text(submit, text)
            await until(lambda wire=wire, text=text: wire.out[-1][1] == text)
        assert (wire.out[-1][0] == "text") == passes
        before = generation.timing.detokenise
        if end == "length":
            engine.text(submit, "e", finish="length")
            await following
        generation.abort()
        if end == "abort":
            await following
        if passes:
            assert generation.timing.detokenise > before, "what it took is told at the end"
        facts = counts.facts
        assert facts is not None
        assert facts.first_token <= facts.last_token
        found.append((counts.heard, facts.generated_tokens, facts.tokens_by_sequence))
    assert found[0] == found[1]
    assert found[0][1] == (5 if end == "length" else 4)


async def test_drafted_tokens_are_counted(engine, client):
    wire = Wire()
    generation, submit, following = await begun(client, engine, wire, SamplingParams(max_tokens=9))
    engine.send(Outputs([SequenceOutput(submit.request, 0, list(b"bcd"), drafted=4)]))
    await until(wire.came("a", "bcd"))
    assert wire.out[-1][0] == "text"
    assert (generation.drafted, generation.kept) == (4, 2)
    generation.abort()
    await following


async def test_a_token_that_goes_past_deltas_clears_of_blame_too(engine, client):
    wire = Wire()
    generation, submit, following = await begun(client, engine, wire, SamplingParams(max_tokens=9))
    engine.text(submit, "b")
    await until(wire.came("a", "b"))
    engine.entered(submit)  # After a preemption.
    await until(lambda: generation.blame._entered)
    engine.text(submit, "c")
    await until(wire.came("a", "b", "c"))
    assert not generation.blame._entered
    generation.abort()
    await following


async def test_a_request_goes_on_with_what_went_past_deltas(engine, client):
    wire = Wire()
    generation, submit, following = await begun(client, engine, wire, SamplingParams(max_tokens=9))
    engine.text(submit, "bc")
    await until(wire.came("a", "bc"))
    engine.lose_session()
    await until(lambda: len(engine.submits) == 2)
    again = engine.submits[-1]
    assert bytes(again.sequences[0].emitted) == b"abc"
    engine.text(again, "d")
    await until(wire.came("a", "bc", "d"))
    engine.text(again, "e")
    await until(wire.came("a", "bc", "d", "e"))
    assert [way for way, _ in wire.out[1:]] == ["text", "deltas", "text"]
    generation.abort()
    await following


@pytest.mark.parametrize(
    ("params", "more"),
    [
        (SamplingParams(max_tokens=9, stop="zz"), {}),
        (SamplingParams(max_tokens=9, n=2), {}),
        (SamplingParams(max_tokens=9), {"known": [KnownTokens(0)], "terms": Terms()}),
    ],
    ids=["stop", "n", "replayed"],
)
async def test_what_may_be_more_than_text_stays_with_deltas(engine, client, params, more):
    wire = Wire()
    generation, submit, following = await begun(client, engine, wire, params, **more)
    for text in "bc":
        engine.text(submit, text)
        await until(lambda text=text: wire.out[-1][1] == text)
    assert {way for way, _ in wire.out} == {"deltas"}
    generation.abort()
    await following
