"""Responses that go on from a conversation, and add to it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import openai
import pytest

from penstock_gateway.batches.background import BackgroundRunner
from penstock_gateway.batches.process import caller_of
from tests.gateway.batches.storing import Storing
from tests.gateway.conversations.conversing import last_prompt, said, texts
from tests.gateway.fake_engine import say
from tests.gateway.responses.test_responses import events_of


async def test_responses_go_on_from_it_and_add_to_it(
    gateway: Storing, sdk: openai.AsyncOpenAI
) -> None:
    conversation = (await sdk.conversations.create(items=[said("One?")])).id
    first = await sdk.responses.create(
        model=None, input="Two?", conversation=conversation, instructions="Be brief."
    )
    assert first.conversation is not None
    assert first.conversation.id == conversation
    assert last_prompt(gateway) == "system: Be brief.\nuser: One?\nuser: Two?\nassistant:"
    await sdk.responses.create(
        model=None, input=[said("Three?")], conversation={"id": conversation}, store=False
    )
    told = "user: One?\nuser: Two?\nassistant: Yes.0\nuser: Three?\nassistant:"
    assert last_prompt(gateway) == told
    assert await texts(sdk, conversation) == ["One?", "Two?", "Yes.0", "Three?", "Yes.0"]
    # What was answered has the id that the response showed.
    found = await sdk.conversations.items.retrieve(first.output[0].id, conversation_id=conversation)
    assert found.content[0].text == "Yes.0"


async def test_a_stream_adds_to_it_before_it_ends(
    gateway: Storing, sdk: openai.AsyncOpenAI
) -> None:
    conversation = (await sdk.conversations.create()).id
    async for event in await sdk.responses.create(
        model=None, input="One?", conversation=conversation, stream=True, store=False
    ):
        if event.type == "response.completed":
            assert await texts(sdk, conversation) == ["One?", "Yes.0"]
            assert event.response.conversation.id == conversation
            break
    else:
        pytest.fail("it didn't complete")


async def test_it_may_go_on_without_anything_new(gateway: Storing, sdk: openai.AsyncOpenAI) -> None:
    conversation = (await sdk.conversations.create(items=[said("One?")])).id
    await sdk.responses.create(model=None, conversation=conversation)
    assert last_prompt(gateway) == "user: One?\nassistant:"
    assert await texts(sdk, conversation) == ["One?", "Yes.0"]
    empty = (await sdk.conversations.create()).id
    with pytest.raises(openai.BadRequestError, match="input is missing"):
        await sdk.responses.create(model=None, conversation=empty)


async def test_calls_are_answered_in_it(gateway: Storing, sdk: openai.AsyncOpenAI) -> None:
    """A response in a conversation answers what it would if all items had been sent."""
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    told = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    conversation = (await sdk.conversations.create(items=[said("Call."), call])).id  # type: ignore[list-item]
    await sdk.responses.create(model=None, input=[told], conversation=conversation)  # type: ignore[list-item]
    in_it = gateway.engine.submitted[-1][0]
    await sdk.responses.create(model=None, input=[said("Call."), call, told])  # type: ignore[list-item]
    assert gateway.engine.submitted[-1][0] == in_it


async def test_a_failure_adds_nothing(gateway: Storing, sdk: openai.AsyncOpenAI) -> None:
    conversation = (await sdk.conversations.create()).id

    def breaking(prompt: list[int], params: Any) -> Any:
        return [*list(say("Yes.")(prompt, params))[:2], RuntimeError("no")]

    gateway.engine.script = breaking
    body = {"input": "One?", "conversation": conversation}
    headers = {"authorization": "Bearer none"}
    failed = await gateway.http.post("/v1/responses", json=body, headers=headers)
    assert failed.status_code == 500
    body["stream"] = True  # type: ignore[assignment]
    failed = await gateway.http.post("/v1/responses", json=body, headers=headers)
    assert events_of(failed.text)[-1]["type"] == "response.failed"
    assert await texts(sdk, conversation) == []


async def test_two_at_once_see_neither_and_follow_one_another(
    gateway: Storing, sdk: openai.AsyncOpenAI
) -> None:
    """Each goes on from what there was when it began; who ends first stands first."""
    conversation = (await sdk.conversations.create(items=[said("One?")])).id
    gates = {"Slow?": asyncio.Event(), "Fast?": asyncio.Event()}
    prompts: list[str] = []

    async def open_when_both_are_there() -> None:
        while len(gateway.engine.submitted) < 2:
            await asyncio.sleep(0.01)
        prompts.extend(bytes(each[0]).decode() for each in gateway.engine.submitted)
        gates["Fast?"].set()

    submit = gateway.engine.submit

    async def gated(*given: Any, **more: Any) -> Any:
        generation = await submit(*given, **more)
        words = bytes(gateway.engine.submitted[-1][0]).decode()
        (gate,) = [gate for name, gate in gates.items() if name in words]
        await gate.wait()
        return generation

    gateway.engine.submit = gated  # type: ignore[method-assign]
    slow = asyncio.create_task(
        sdk.responses.create(model=None, input="Slow?", conversation=conversation)
    )
    while not gateway.engine.submitted:
        await asyncio.sleep(0.01)
    fast = asyncio.create_task(
        sdk.responses.create(model=None, input="Fast?", conversation=conversation)
    )
    await open_when_both_are_there()
    await fast
    gates["Slow?"].set()
    await slow
    assert prompts == [f"user: One?\nuser: {name}\nassistant:" for name in ("Slow?", "Fast?")]
    assert await texts(sdk, conversation) == ["One?", "Fast?", "Yes.0", "Slow?", "Yes.0"]


async def test_additions_at_once_lose_nothing(gateway: Storing, sdk: openai.AsyncOpenAI) -> None:
    conversation = (await sdk.conversations.create()).id
    pairs = [[said(f"{number}a"), said(f"{number}b")] for number in range(4)]
    await asyncio.gather(
        *(sdk.conversations.items.create(conversation, items=each) for each in pairs)
    )
    found = await texts(sdk, conversation)
    assert sorted(found) == sorted(f"{number}{half}" for number in range(4) for half in "ab")
    assert all(found[at][0] == found[at + 1][0] for at in range(0, 8, 2))


async def test_an_answer_that_is_asked_for_again_takes_its_place(
    gateway: Storing, sdk: openai.AsyncOpenAI
) -> None:
    """A background answer is run again after its process has died."""
    conversation = (await sdk.conversations.create(items=[said("One?")])).id
    for _ in range(2):
        await sdk.responses.create(
            model=None, input="Two?", conversation=conversation, extra_body={"request_id": "mine"}
        )
        assert last_prompt(gateway) == "user: One?\nuser: Two?\nassistant:"
    assert await texts(sdk, conversation) == ["One?", "Two?", "Yes.0"]


async def test_in_the_background(gateway: Storing, sdk: openai.AsyncOpenAI) -> None:
    conversation = (await sdk.conversations.create(items=[said("One?")])).id
    asked = await sdk.responses.create(
        model=None, input="Two?", conversation=conversation, background=True
    )
    assert asked.conversation is not None
    assert await texts(sdk, conversation) == ["One?"]
    assert gateway.store.background is not None
    caller = partial(caller_of, None, background=False)
    runner = BackgroundRunner(gateway.store.background, gateway.app, caller, at_once=2)
    task = asyncio.create_task(runner.run())
    while (done := await sdk.responses.retrieve(asked.id)).status != "completed":
        await asyncio.sleep(0.01)
    task.cancel()
    assert done.conversation == asked.conversation
    assert await texts(sdk, conversation) == ["One?", "Two?", "Yes.0"]


async def test_it_excludes_a_previous_response(sdk: openai.AsyncOpenAI) -> None:
    conversation = (await sdk.conversations.create()).id
    first = await sdk.responses.create(model=None, input="One?", conversation=conversation)
    with pytest.raises(openai.BadRequestError, match="exclude each other"):
        await sdk.responses.create(
            model=None, input="x", conversation=conversation, previous_response_id=first.id
        )
    # A response goes on from its conversation, which the chain of responses doesn't hold.
    with pytest.raises(openai.BadRequestError, match=conversation):
        await sdk.responses.create(model=None, input="x", previous_response_id=first.id)


async def test_tokens_of_it_are_counted(sdk: openai.AsyncOpenAI) -> None:
    conversation = (await sdk.conversations.create(items=[said("One?")])).id
    count = await sdk.responses.input_tokens.count(input="Two?", conversation=conversation)
    assert count.input_tokens == len("user: One?\nuser: Two?\nassistant:")
