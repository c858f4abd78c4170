"""The front end's client against an engine that speaks the real protocol from a script."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock import SamplingParams, StructuredOutputs
from penstock.client import EngineClient, Generation
from penstock.client import engine_client as module
from penstock.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    InvalidRequest,
    Limited,
    Overloaded,
    RequestFailed,
)
from penstock.protocol.common import Grammar
from penstock.protocol.to_frontend import (
    Outputs,
    Prepared,
    Rejected,
    SequenceOutput,
    SequenceTimeline,
)
from penstock.terms import Terms
from tests.shared.scripted_engine import FAST, ScriptedEngine

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio]


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


@pytest.fixture
async def engine(endpoint: str) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(endpoint)
    yield engine
    if not engine.hub.socket.closed:
        await engine.die()


@pytest.fixture
async def client(endpoint: str, engine: ScriptedEngine) -> AsyncIterator[EngineClient]:
    client = EngineClient(endpoint, name="test", settings=FAST)
    await client.start()
    await client.wait_connected(60)
    yield client
    await client.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def collect(generation: Generation) -> dict[int, tuple[str, list[int], str, object]]:
    """(text, ids, finish reason, stop reason) of each sequence, deltas joined."""
    result: dict[int, tuple[str, list[int], str, object]] = {}
    async for deltas in generation:
        for delta in deltas:
            text, ids, _, _ = result.get(delta.index, ("", [], "", None))
            result[delta.index] = (
                text + delta.text,
                ids + delta.token_ids,
                delta.finish_reason or "",
                delta.stop_reason,
            )
    return result


async def test_a_request_runs_to_its_end(engine, client):
    generation = await client.submit(list(b"hi"), SamplingParams(seed=7), name="one")
    [submit] = engine.submits
    assert (submit.prompt, submit.sampling.seed, submit.name) == (list(b"hi"), 7, "one")
    engine.text(submit, "Grüß")
    engine.text(submit, "e")
    engine.send(Outputs([SequenceOutput(submit.request, 0, [0], finish="stop")]))
    result = await collect(generation)
    # The EOS token is counted and not shown.
    assert result == {0: ("Grüße", [*"Grüße".encode(), 0], "stop", None)}
    assert client.open_requests == 0


async def test_a_stop_string_ends_the_text_and_tells_the_engine_where(engine, client):
    params = SamplingParams(stop=["END"], max_tokens=50, logprobs=None)
    generation = await client.submit(list(b"x"), params, name="stop")
    [submit] = engine.submits
    engine.text(submit, "ab E")
    engine.text(submit, "N")
    engine.text(submit, "D and more")
    result = await collect(generation)
    assert result == {0: ("ab ", list(b"ab END"), "stop", "END")}
    await until(lambda: engine.finishes)
    assert (engine.finishes[0].sequence, engine.finishes[0].at) == (0, 6)


async def test_min_tokens_guards_the_text_from_stop_strings(engine, client):
    params = SamplingParams(stop="a", min_tokens=3, max_tokens=50)
    generation = await client.submit(list(b"x"), params, name="min")
    [submit] = engine.submits
    engine.text(submit, "aaabba")
    assert await collect(generation) == {0: ("aaabb", list(b"aaabba"), "stop", "a")}


async def test_sequences_end_on_their_own(engine, client):
    generation = await client.submit(list(b"x"), SamplingParams(n=2), name="two")
    [submit] = engine.submits
    engine.text(submit, "one", sequence=1, finish="length")
    engine.text(submit, "zero", sequence=0, finish="length")
    result = await collect(generation)
    assert {index: entry[0] for index, entry in result.items()} == {0: "zero", 1: "one"}


async def test_an_engine_that_dies_is_resumed_on_its_successor(engine, client, endpoint):
    generation = await client.submit(list(b"x"), SamplingParams(n=2, max_tokens=50), name="r")
    [submit] = engine.submits
    engine.text(submit, "left ", sequence=0)
    engine.text(submit, "done", sequence=1, finish="length")
    first = await anext(generation)
    while len(first) < 2:
        first += await anext(generation)
    await engine.die()
    successor = ScriptedEngine(endpoint, boot=b"boot-two")
    try:
        await until(lambda: successor.submits)
        [again] = successor.submits
        assert [(s.index, bytes(s.emitted)) for s in again.sequences] == [(0, b"left ")]
        assert (again.deaths, again.sampling) == (1, submit.sampling)
        successor.text(again, "right", finish="length")
        rest = await collect(generation)
        assert rest[0][0] == "right"
    finally:
        await successor.die()


async def test_half_a_character_survives_the_engine(engine, client, endpoint):
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="half")
    [submit] = engine.submits
    euro = "€".encode()
    engine.send(Outputs([SequenceOutput(submit.request, 0, list(euro[:1]))]))
    await until(lambda: generation.submission().sequences[0].emitted)
    await engine.die()
    successor = ScriptedEngine(endpoint, boot=b"boot-two")
    try:
        await until(lambda: successor.submits)
        again = successor.submits[0]
        successor.send(Outputs([SequenceOutput(again.request, 0, list(euro[1:]), finish="length")]))
        assert (await collect(generation))[0][0] == "€"
    finally:
        await successor.die()


async def test_a_lost_session_alone_is_no_death(engine, client):
    await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="again")
    engine.hub.end(engine.session, "for the test")
    await until(lambda: len(engine.submits) == 2)
    assert engine.submits[1].deaths == 0


async def test_an_engine_that_drained_did_not_die(engine, client, endpoint):
    await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="again")
    engine.send(engine.status(draining=True))
    await until(lambda: client.status is not None and client.status.draining)
    await engine.die()
    successor = ScriptedEngine(endpoint, boot=b"boot-two")
    try:
        await until(lambda: successor.submits)
        assert successor.submits[0].deaths == 0
        assert successor.submits[0].resumed
    finally:
        await successor.die()


def engine_says(**changes: float) -> SequenceTimeline:
    fields = dict.fromkeys(SequenceTimeline.__struct_fields__, 0)
    return SequenceTimeline(**{**fields, **changes})


async def test_a_timed_request_hears_of_each_sequence(engine, client):
    generation = await client.submit(list(b"x"), SamplingParams(n=2), name="t", timed=True)
    [submit] = engine.submits
    assert submit.timeline
    for index in (1, 0):
        told = engine_says(steps=index + 5)
        engine.send(
            Outputs([SequenceOutput(submit.request, index, [65], finish="length", timeline=told)])
        )
    await collect(generation)
    timing = generation.timing
    assert timing is not None
    assert timing.complete
    assert {index: each.steps for index, each in timing.sequences.items()} == {0: 5, 1: 6}
    assert timing.last == 0
    assert 0 < timing.begun == timing.submitted < timing.ended
    assert timing.detokenise > 0
    assert client.open_requests == 0


async def test_a_stop_string_does_not_lose_the_engines_account(engine, client):
    params = SamplingParams(stop=["END"], max_tokens=50)
    generation = await client.submit(list(b"x"), params, name="stop", timed=True)
    [submit] = engine.submits
    engine.text(submit, "ab END")
    assert (await collect(generation))[0][0] == "ab "
    assert generation.finished
    assert not generation.timing.complete
    assert client.open_requests == 1, "the engine has not spoken yet"
    told = engine_says(steps=6)
    engine.send(Outputs([SequenceOutput(submit.request, 0, finish="stop", timeline=told)]))
    await generation.timing.wait(60)
    assert generation.timing.sequences[0].steps == 6
    assert client.open_requests == 0


async def test_who_waits_for_an_account_only_is_not_submitted_again(engine, client):
    params = SamplingParams(stop=["END"], max_tokens=50)
    generation = await client.submit(list(b"x"), params, name="stop", timed=True)
    engine.text(engine.submits[0], "END")
    await collect(generation)
    other = await client.submit(list(b"y"), SamplingParams(max_tokens=50), name="o", timed=True)
    engine.hub.end(engine.session, "for the test")
    await until(lambda: len(engine.submits) == 3)
    assert engine.submits[2].name == "o"
    assert other.timing.submitted > other.timing.begun
    generation.abort()
    await asyncio.sleep(0.05)
    assert client.open_requests == 1
    assert len(engine.submits) == 3


async def test_who_comes_while_the_engine_is_away_for_a_moment_waits(
    engine, client, endpoint, monkeypatch
):
    monkeypatch.setattr("penstock.client.engine_client.NEW_PATIENCE", 60.0)
    await engine.die()
    await until(lambda: not client.connected)
    assert client.takes_requests
    coming = asyncio.create_task(client.submit(list(b"x"), SamplingParams(max_tokens=5), name="n"))
    await asyncio.sleep(0.1)
    assert not coming.done()
    successor = ScriptedEngine(endpoint, boot=b"boot-two")
    try:
        generation = await coming
        [submit] = successor.submits
        assert (submit.deaths, submit.resumed) == (0, False)
        generation.abort()
    finally:
        await successor.die()


async def test_a_new_request_does_not_wait_long(engine, client, monkeypatch):
    monkeypatch.setattr("penstock.client.engine_client.NEW_PATIENCE", 0.3)
    await engine.die()
    await until(lambda: not client.connected)
    with pytest.raises(EngineUnavailable, match="no session"):
        await client.submit(list(b"x"), SamplingParams(max_tokens=5), name="n")
    assert not client.takes_requests


async def test_who_left_in_order_is_not_waited_for(engine, client):
    engine.send(engine.status(draining=True))
    await until(lambda: client.status is not None and client.status.draining)
    await engine.die()
    await until(lambda: not client.connected)
    assert not client.takes_requests


async def test_another_model_fails_what_was_open(engine, client, endpoint):
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="m")
    await engine.die()
    successor = ScriptedEngine(endpoint, boot=b"boot-two", digest="d2")
    try:
        with pytest.raises(RequestFailed, match="another model"):
            await collect(generation)
        assert successor.submits == []
    finally:
        await successor.die()


async def test_requests_fail_when_no_engine_comes_back(engine, client, monkeypatch):
    monkeypatch.setattr(module, "RESUME_PATIENCE", 0.2)
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="gone")
    await engine.die()
    with pytest.raises(EngineUnavailable, match="none came back"):
        await collect(generation)
    with pytest.raises(EngineUnavailable, match="no session"):
        await client.submit(list(b"x"), SamplingParams(), name="now")


async def test_terms_travel_and_what_is_left_of_the_time_goes_down(engine, client):
    terms = Terms.checked(tenant="t", priority=-3, deadline_ms=500_000)
    before = time.monotonic()
    generation = await client.submit(
        list(b"x"), SamplingParams(max_tokens=50), name="t", terms=terms
    )
    await asyncio.sleep(0.1)
    engine.hub.end(engine.session, "for the test")
    await until(lambda: len(engine.submits) == 2)
    first, second = engine.submits
    assert (first.tenant, first.priority) == (second.tenant, second.priority) == ("t", -3)
    passed = 1000 * (time.monotonic() - before)
    assert 499_900 - passed < second.time_left_ms <= first.time_left_ms - 90 < 500_000
    generation.abort()


async def test_a_deadline_passes_although_no_engine_is_there(engine, client):
    terms = Terms.checked(deadline_ms=1500)
    generation = await client.submit(
        list(b"x"), SamplingParams(max_tokens=50, n=2), name="d", terms=terms
    )
    waiting = asyncio.create_task(collect(generation))
    await engine.die()
    async with asyncio.timeout(60):
        result = await waiting
    assert [result[index][2] for index in (0, 1)] == ["timeout", "timeout"]
    assert client.open_requests == 0


async def test_a_deadline_that_is_over_is_not_even_sent(engine, client):
    terms = Terms(deadline=time.monotonic() - 1)
    with pytest.raises(DeadlineExceeded):
        await client.submit(list(b"x"), SamplingParams(), name="over", terms=terms)
    assert engine.submits == []


async def test_abort_reaches_the_engine_and_ends_the_iteration(engine, client):
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="a")
    generation.abort()
    generation.abort()
    assert (await collect(generation))[0][2] == "abort"
    await until(lambda: engine.aborts)
    assert [abort.request for abort in engine.aborts] == [engine.submits[0].request]


async def test_a_caller_that_is_cancelled_while_it_waits_aborts(engine, client):
    engine.accepting = False
    task = asyncio.create_task(client.submit(list(b"x"), SamplingParams(), name="c"))
    await until(lambda: engine.submits)
    task.cancel()
    await until(lambda: engine.aborts)
    assert client.open_requests == 0


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("invalid", InvalidRequest),
        ("overloaded", Overloaded),
        ("limited", Limited),
        ("unavailable", EngineUnavailable),
    ],
)
async def test_a_rejection_is_raised(engine, client, code, error):
    engine.accepting = False
    task = asyncio.create_task(client.submit(list(b"x"), SamplingParams(), name="c"))
    await until(lambda: engine.submits)
    engine.send(Rejected(engine.submits[0].request, code, "because", retry_after_ms=1500))
    with pytest.raises(error, match="because") as caught:
        await task
    if code in ("overloaded", "limited"):
        assert caught.value.retry_after == 1.5


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ([1] * 100, "context is 100"),
        ([256], "256 is not in"),
        ([-1], "-1 is not in"),
    ],
)
async def test_a_prompt_that_cannot_run_is_refused_at_once(engine, client, prompt, words):
    with pytest.raises(InvalidRequest, match=words):
        await client.submit(prompt, SamplingParams(), name="bad")
    assert engine.submits == []


async def test_an_absent_seed_is_drawn_and_kept_when_resumed(engine, client):
    await client.submit(list(b"x"), SamplingParams(max_tokens=9), name="one")
    await client.submit(list(b"x"), SamplingParams(max_tokens=9), name="two")
    seeds = [submit.sampling.seed for submit in engine.submits]
    assert seeds[0] != seeds[1]
    engine.hub.end(engine.session, "for the test")
    await until(lambda: len(engine.submits) == 4)
    assert [submit.sampling.seed for submit in engine.submits[2:]] == seeds


async def test_status_comes_and_ages(engine, client):
    await until(lambda: client.status is not None)
    assert client.status.ready
    assert client.status_age(1e12) > 1e9


async def test_a_death_is_forgotten_once_the_request_gains_a_token(engine, client, endpoint):
    """A long stream may outlive any number of engines."""
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="long")
    await engine.die()
    for number in range(3):
        await one_token_of_another_engine(endpoint, generation, number)


async def one_token_of_another_engine(endpoint: str, generation: Generation, before: int) -> None:
    successor = ScriptedEngine(endpoint, boot=b"boot-n-%d" % before)
    await until(lambda: successor.submits)
    [again] = successor.submits
    assert (again.deaths, again.resumed) == (1, True)
    successor.text(again, "x")
    await until(lambda: len(generation.submission().sequences[0].emitted) == before + 1)
    await successor.die()


BOUND = SamplingParams(n=2, structured_outputs=StructuredOutputs(regex="a+"))


async def test_a_grammar_is_awaited_before_the_request_is_handed_out(engine, client):
    waiting = asyncio.create_task(client.submit(list(b"x"), BOUND, name="bound"))
    await until(lambda: engine.submits)
    [submit] = engine.submits
    assert submit.grammar == Grammar("regex", "a+")
    await asyncio.sleep(0.1)
    assert not waiting.done()
    engine.send(Prepared(submit.request))
    generation = await waiting
    engine.send(Prepared(submit.request))  # Said again where a worker died.
    engine.text(submit, "a")
    for index in range(2):
        engine.send(Outputs([SequenceOutput(submit.request, index, [0], finish="stop")]))
    assert (await collect(generation))[0][:1] == ("a",)


async def test_a_bad_grammar_is_an_invalid_request(engine, client):
    waiting = asyncio.create_task(client.submit(list(b"x"), BOUND, name="bad"))
    await until(lambda: engine.submits)
    [submit] = engine.submits
    for index in range(2):
        failed = SequenceOutput(
            submit.request, index, finish="error", error="why", error_code="invalid_grammar"
        )
        engine.send(Outputs([failed]))
    with pytest.raises(InvalidRequest, match="why") as refused:
        await waiting
    assert refused.value.param == "structured_outputs"
    assert client.open_requests == 0


async def test_a_grammar_that_fails_later_is_an_output(engine, client):
    waiting = asyncio.create_task(client.submit(list(b"x"), BOUND, name="slow"))
    await until(lambda: engine.submits)
    [submit] = engine.submits
    engine.send(Prepared(submit.request))
    generation = await waiting
    for index in range(2):
        failed = SequenceOutput(
            submit.request, index, finish="error", error="why", error_code="complex_grammar"
        )
        engine.send(Outputs([failed]))
    deltas = [delta async for deltas in generation for delta in deltas]
    assert {(d.finish_reason, d.error, d.error_code) for d in deltas} == {
        ("error", "why", "complex_grammar")
    }


async def test_a_grammar_goes_along_when_the_request_is_submitted_again(endpoint, engine, client):
    waiting = asyncio.create_task(client.submit(list(b"x"), BOUND, name="again"))
    await until(lambda: engine.submits)
    await engine.die()
    second = ScriptedEngine(endpoint, boot=b"boot-two")
    await until(lambda: second.submits)
    [submit] = second.submits
    assert submit.grammar == Grammar("regex", "a+")
    assert not waiting.done()
    second.send(Prepared(submit.request))
    generation = await waiting
    generation.abort()
    await until(lambda: second.aborts)
    await second.die()


async def test_a_grammar_that_is_too_long_is_not_sent(engine, client):
    long = SamplingParams(structured_outputs=StructuredOutputs(regex="a" * 70_000))
    with pytest.raises(InvalidRequest, match="70000 bytes; at most 65536"):
        await client.submit(list(b"x"), long, name="long")
    assert engine.submits == []


async def test_a_sink_gets_what_it_takes_and_the_consumer_the_rest(engine, client):
    generation = await client.submit(list(b"x"), SamplingParams(n=2, max_tokens=50), name="fed")
    [submit] = engine.submits
    taken: list[tuple[int, str]] = []
    willing = True

    def sink(deltas):
        if not willing or any(delta.finish_reason for delta in deltas):
            return False
        taken.extend((delta.index, delta.text) for delta in deltas)
        return True

    generation.feed(sink)
    # Nobody waits yet: what comes is the consumer's.
    engine.text(submit, "a")
    await until(lambda: generation._pending)
    steps = generation.__aiter__()
    assert [delta.text for delta in await anext(steps)] == ["a"]
    following = asyncio.create_task(anext(steps))
    await until(lambda: generation._waited_for)
    for text in ("b", "c"):
        engine.text(submit, text)
        await until(lambda text=text: taken[-1:] == [(0, text)])
    engine.text(submit, "D", sequence=1)
    await until(lambda: taken[-1:] == [(1, "D")])
    assert not following.done()
    # What it leaves is merged, in order, and waits for the consumer.
    willing = False
    engine.text(submit, "e")
    engine.text(submit, "f")
    await until(following.done)
    left = [delta.text for delta in await following]
    willing = True
    engine.text(submit, "g", finish="length")
    engine.text(submit, "H", sequence=1, finish="length")
    rest = await collect(generation)
    assert "".join(left) + rest[0][0] == "efg"
    assert rest[1][0] == "H"
    assert taken == [(0, "b"), (0, "c"), (1, "D")]
    assert client.open_requests == 0
