"""Prompts that one engine core computes, and another one goes on with."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from penstock import SamplingParams
from penstock.client import EngineClient
from penstock.protocol.from_frontend import ExpectPrompt, ForgetPrompt
from penstock.request.terms import Terms
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import collect, until
from tests.shared.client.fleet_scene import Scene

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]

PROMPT = list(b"a prompt that is long enough")
PARAMS = SamplingParams(n=2, max_tokens=50, seed=7)


@pytest.fixture
async def two(scene: Scene) -> tuple[ScriptedEngine, ScriptedEngine, EngineClient]:
    """One for prompts, one that generates, and who has both."""
    prefill, decode = scene.engine(0, prefills_from=20), scene.engine(1)
    client = await scene.connect(2)
    await scene.ready(2)
    return prefill, decode, client


async def submitted(prefill: ScriptedEngine, client: EngineClient, **more: Any) -> asyncio.Task:
    task = asyncio.create_task(client.submit(PROMPT, PARAMS, name="long", **more))
    await until(lambda: prefill.submits)
    return task


async def answered(task: asyncio.Task, decode: ScriptedEngine) -> None:
    """The whole request, as if nothing had gone before it."""
    await until(lambda: decode.submits)
    [submit] = decode.submits
    assert (submit.prompt_token_ids, len(submit.sequences)) == (PROMPT, 2)
    assert (submit.sampling.seed, submit.stopping.max_tokens, submit.resumed) == (7, 50, False)
    generation = await task
    for sequence in (0, 1):
        decode.text(submit, "yes", sequence=sequence, finish="length")
    assert (await collect(generation))[1][0] == "yes"
    assert len(decode.submits) == 1


async def test_a_long_prompt_is_computed_first_and_its_token_is_thrown_away(two) -> None:
    prefill, decode, client = two
    terms = Terms(cache_salt="s", tenant="t", priority=3, deadline=time.monotonic() + 1000)
    task = await submitted(prefill, client, terms=terms)
    [first] = prefill.submits
    assert (first.prompt_token_ids, len(first.sequences)) == (PROMPT, 1)
    assert (first.stopping.max_tokens, first.grammar, first.resumed) == (1, None, False)
    assert (first.cache_salt, first.tenant, first.priority) == ("s", "t", 3)
    assert 0 < (first.time_left_ms or 0) <= 1_000_000
    assert not decode.submits
    prefill.text(first, "X", finish="length")
    await answered(task, decode)
    assert client.routed[0, "prefill"] == 1


async def test_short_prompts_go_where_they_are_answered(two) -> None:
    prefill, decode, client = two
    task = asyncio.create_task(client.submit(PROMPT[:19], PARAMS, name="short"))
    await until(lambda: decode.submits)
    (await task).abort()
    assert not prefill.submits


async def test_an_engine_core_that_dies_over_the_prompt(two) -> None:
    prefill, decode, client = two
    task = await submitted(prefill, client)
    prefill.entered(prefill.submits[0])
    await until(lambda: any(each.blame._entered for each in client._dispatch.requests()))
    await prefill.die()
    await answered(task, decode)


async def test_one_that_refuses(two) -> None:
    prefill, decode, client = two
    prefill.refusing = "overloaded"
    task = await submitted(prefill, client)
    await answered(task, decode)


async def test_one_that_fails(two) -> None:
    prefill, decode, client = two
    task = await submitted(prefill, client)
    prefill.text(prefill.submits[0], "", finish="error")
    await answered(task, decode)


async def test_a_client_that_leaves_meanwhile(two) -> None:
    prefill, decode, client = two
    task = await submitted(prefill, client)
    task.cancel()
    await until(lambda: prefill.aborts)
    assert prefill.aborts[0].request == prefill.submits[0].request
    prefill.text(prefill.submits[0], "X", finish="abort")
    await until(lambda: not client._dispatch.requests())
    assert not decode.submits


async def test_where_nobody_else_is_they_answer(scene: Scene) -> None:
    only = scene.engine(0, prefills_from=20)
    client = await scene.connect(1)
    await scene.ready(1)
    task = asyncio.create_task(client.submit(PROMPT, PARAMS, name="long"))
    await answered(task, only)


async def test_the_one_that_generates_dies_and_the_other_goes_on(two) -> None:
    prefill, decode, client = two
    task = await submitted(prefill, client)
    prefill.text(prefill.submits[0], "X", finish="length")
    await until(lambda: decode.submits)
    generation = await task
    decode.text(decode.submits[0], "one ")
    assert (await anext(generation))[0].text == "one "
    await decode.die()
    await until(lambda: len(prefill.submits) == 2)
    again = prefill.submits[1]
    assert [bytes(each.emitted) for each in again.sequences] == [b"one ", b""]
    generation.abort()


@pytest.fixture
async def expecting(scene: Scene) -> tuple[ScriptedEngine, list[ScriptedEngine], EngineClient]:
    """One for prompts, and two that fetch KV blocks while it computes."""
    engines = [scene.engine(0, prefills_from=20), *(scene.engine(n, expects=True) for n in (1, 2))]
    client = await scene.connect(3)
    await scene.ready(3)
    return engines[0], engines[1:], client


def told(engine: ScriptedEngine) -> list[str]:
    return [type(message).__name__ for message in engine.expected]


async def test_who_goes_on_is_told_to_expect_it(expecting) -> None:
    prefill, others, client = expecting
    terms = Terms(cache_salt="s", tenant="t")
    task = await submitted(prefill, client, terms=terms)
    await until(lambda: others[0].expected or others[1].expected)
    [chosen, spare] = sorted(others, key=lambda each: not each.expected)
    [message] = chosen.expected
    assert isinstance(message, ExpectPrompt)
    assert (message.prompt_token_ids, message.cache_salt, message.tenant) == (PROMPT, "s", "t")
    prefill.text(prefill.submits[0], "X", finish="length")
    await answered(task, chosen)
    await until(lambda: len(chosen.expected) == 2)
    assert chosen.expected[1] == ForgetPrompt(message.number)
    assert not spare.expected
    assert not spare.submits


async def test_one_that_was_to_go_on_and_is_gone(expecting) -> None:
    prefill, others, client = expecting
    task = await submitted(prefill, client)
    await until(lambda: others[0].expected or others[1].expected)
    [chosen, spare] = sorted(others, key=lambda each: not each.expected)
    await chosen.die()
    await until(lambda: sum(each.status is not None for each in client._dispatch.fleet) == 2)
    prefill.text(prefill.submits[0], "X", finish="length")
    await answered(task, spare)
    assert not any(session.expected for session in client._dispatch.fleet)


async def test_what_ends_over_the_prompt_is_expected_no_more(expecting) -> None:
    prefill, others, client = expecting
    task = await submitted(prefill, client)
    await until(lambda: others[0].expected or others[1].expected)
    task.cancel()
    await until(lambda: prefill.aborts)
    prefill.text(prefill.submits[0], "X", finish="abort")
    [chosen] = [each for each in others if each.expected]
    await until(lambda: told(chosen) == ["ExpectPrompt", "ForgetPrompt"])
    task = asyncio.create_task(client.submit(PROMPT, PARAMS, name="again"))
    await until(lambda: len(prefill.submits) == 2)
    prefill.text(prefill.submits[1], "", finish="error")
    await until(lambda: any(each.submits for each in others))
    (await task).abort()
    await until(lambda: not any(session.expected for session in client._dispatch.fleet))
