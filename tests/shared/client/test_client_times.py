"""Requests that are timed, and those that have a deadline."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock import SamplingParams
from penstock.errors import DeadlineExceeded
from penstock.protocol.to_frontend import Outputs, SequenceOutput, SequenceTimeline
from penstock.request.terms import Terms
from tests.shared.client.client_requests import collect, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


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
    engine.server.end(engine.session, "for the test")
    await until(lambda: len(engine.submits) == 3)
    assert engine.submits[2].name == "o"
    assert other.timing.submitted > other.timing.begun
    generation.abort()
    await asyncio.sleep(0.05)
    assert client.open_requests == 1
    assert len(engine.submits) == 3


async def test_terms_travel_and_what_is_left_of_the_time_goes_down(engine, client):
    terms = Terms.checked(tenant="t", priority=-3, deadline_ms=500_000)
    generation = await client.submit(
        list(b"x"), SamplingParams(max_tokens=50), name="t", terms=terms
    )
    await asyncio.sleep(0.1)
    engine.server.end(engine.session, "for the test")
    await until(lambda: len(engine.submits) == 2)
    first, second = engine.submits
    assert (first.tenant, first.priority) == (second.tenant, second.priority) == ("t", -3)
    assert 400_000 < second.time_left_ms <= first.time_left_ms - 90 < 500_000
    generation.abort()


async def test_a_deadline_passes_although_no_engine_is_there(engine, client):
    terms = Terms.checked(deadline_ms=2000)
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


async def test_who_waits_for_a_status_gets_the_first_that_suits(engine, client):
    await until(lambda: client.status is not None)
    asked = asyncio.create_task(client.status_when(lambda told: told.fingerprint == "new", 60))
    waiting = [asyncio.create_task(client.status_when(lambda told: told.paused, 0.01))]
    [other] = await asyncio.gather(*waiting)
    assert not other.paused, "none suited in time, so it is the last one"
    engine.tell(fingerprint="old")
    await until(lambda: client.status.fingerprint == "old")
    assert not asked.done()
    engine.tell(fingerprint="new")
    assert (await asked).fingerprint == "new"
