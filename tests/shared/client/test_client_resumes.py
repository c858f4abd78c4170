"""Requests whose engine dies, leaves, or is away for a moment."""

from __future__ import annotations

import asyncio

import pytest

from penstock import SamplingParams
from penstock.client import EngineClient, Generation
from penstock.client import engine_client as module
from penstock.errors import EngineLost, EngineUnavailable, ModelChanged, RequestFailed
from penstock.protocol.to_frontend import Outputs, SequenceOutput
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import collect, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


async def test_an_engine_that_dies_is_resumed_on_its_successor(engine, client, endpoint):
    generation = await client.submit(list(b"x"), SamplingParams(n=2, max_tokens=50), name="r")
    [submit] = engine.submits
    engine.text(submit, "left ", sequence=0)
    engine.text(submit, "done", sequence=1, finish="length")
    first = await anext(generation)
    while len(first) < 2:
        first += await anext(generation)
    engine.entered(submit)
    engine.tell(steps=1)
    await until(lambda: client.status.steps == 1)
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
    engine.server.end(engine.session, "for the test")
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


async def test_who_comes_while_the_engine_is_away_for_a_moment_waits(
    engine, client, endpoint, monkeypatch
):
    monkeypatch.setattr(module, "NEW_PATIENCE", 60.0)
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


def submitted(engine: ScriptedEngine) -> set[bytes]:
    """Prompts."""
    return {bytes(each.prompt_token_ids) for each in engine.submits}


@pytest.mark.parametrize(("numbers", "goes_on"), [("f", True), ("g", False)])
async def test_an_answer_is_not_ended_by_other_numbers(engine, client, endpoint, numbers, goes_on):
    """What hasn't begun is computed by an engine core that came back with other weights, or on
    another machine."""
    begun = await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="begun")
    fresh = await client.submit(list(b"y"), SamplingParams(max_tokens=50), name="fresh")
    await until(lambda: len(engine.submits) == 2)
    engine.text(engine.submits[0], "left ")
    await anext(begun)
    await engine.die()
    successor = ScriptedEngine(endpoint, boot=b"boot-two", fingerprint=numbers)
    try:
        if not goes_on:
            with pytest.raises(ModelChanged, match="no engine core computes with fp_"):
                await collect(begun)
        await until(lambda: submitted(successor) >= ({b"x", b"y"} if goes_on else {b"y"}))
        for submit in successor.submits:
            successor.text(submit, "right", finish="length")
        assert (await collect(fresh))[0][0] == "right"
        if goes_on:
            assert (await collect(begun))[0][0] == "right"
    finally:
        await successor.die()


async def test_requests_fail_when_no_engine_comes_back(engine, client, monkeypatch):
    monkeypatch.setattr(module, "RESUME_PATIENCE", 0.2)
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="gone")
    await engine.die()
    with pytest.raises(EngineLost, match="none reconnected"):
        await collect(generation)
    with pytest.raises(EngineUnavailable, match="no session"):
        await client.submit(list(b"x"), SamplingParams(), name="now")


async def test_an_absent_seed_is_drawn_and_kept_when_resumed(engine, client):
    await client.submit(list(b"x"), SamplingParams(max_tokens=9), name="one")
    await client.submit(list(b"x"), SamplingParams(max_tokens=9), name="two")
    seeds = [submit.sampling.seed for submit in engine.submits]
    assert seeds[0] != seeds[1]
    engine.server.end(engine.session, "for the test")
    await until(lambda: len(engine.submits) == 4)
    assert [submit.sampling.seed for submit in engine.submits[2:]] == seeds


async def test_a_death_is_forgotten_once_the_request_gains_a_token(engine, client, endpoint):
    """A long stream may outlive any number of engines."""
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="long")
    await dies_in_a_step(engine, client)
    for number in range(3):
        successor = ScriptedEngine(endpoint, boot=b"boot-n-%d" % number)
        try:
            await one_token(successor, generation, number)
        finally:
            await dies_in_a_step(successor, client)


async def dies_in_a_step(engine: ScriptedEngine, client: EngineClient) -> None:
    engine.entered(engine.submits[-1])
    engine.tell(steps=1)
    await until(lambda: client.status is not None and client.status.steps == 1)
    await engine.die()


async def one_token(engine: ScriptedEngine, generation: Generation, before: int) -> None:
    await until(lambda: engine.submits)
    [again] = engine.submits
    assert (again.deaths, again.resumed) == (1, True)
    engine.text(again, "x")
    await until(lambda: len(generation.submission().sequences[0].emitted) == before + 1)
