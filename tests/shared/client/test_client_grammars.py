"""Requests that wait until their grammar is ready."""

from __future__ import annotations

import asyncio

import pytest

from penstock import SamplingParams, StructuredOutputs
from penstock.errors import InvalidRequest, Overloaded
from penstock.protocol.common import Grammar
from penstock.protocol.to_frontend import Outputs, Prepared, SequenceOutput
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import collect, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]

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


async def test_a_grammar_that_could_not_be_compiled_now_may_come_again(engine, client):
    waiting = asyncio.create_task(client.submit(list(b"x"), BOUND, name="unlucky"))
    await until(lambda: engine.submits)
    [submit] = engine.submits
    for index in range(2):
        failed = SequenceOutput(
            submit.request, index, finish="error", error="why", error_code="unavailable"
        )
        engine.send(Outputs([failed]))
    with pytest.raises(Overloaded, match="why") as refused:
        await waiting
    assert refused.value.retry_after == 1.0
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
