"""Streams of stored responses: read by OpenAI's SDK, from any event on, however far the answer has
come, and whoever has died meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from sqlalchemy import select

from penstock.client import SequenceDelta, computing
from penstock.client.placement import fingerprint_name
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.responses.items import OutputItem
from penstock_gateway.responses.replay import AnswerSoFar, LaterEvents, writing
from penstock_gateway.responses.reply import Response
from penstock_gateway.storage.tables import background
from tests.gateway.batches.storing import Storing, storing
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import FakeEngineClient, Step, say, status
from tests.gateway.responses.open_responses import check_event
from tests.gateway.responses.test_background import ENDLESS, begin, running, seen, until
from tests.gateway.responses.tool_answers import HERMES, NOW, WEATHER, built, plain

pytestmark = pytest.mark.timeout(120)

URL = "/v1/responses"
KNOWN: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ANSWER = f"<think>Hm, weather. Let me see what there is for that.</think>Well: é👋 {HERMES}"


def write_events(events: LaterEvents, response: Response) -> bool:
    """Writes them; whether they are all that there will be."""
    *_, is_whole = writing(events, response)
    return is_whole


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    engine.template.source = "<tool_call> </think>"
    engine.script = say(ANSWER)
    more: dict[str, Any] = {"stored_response_hours": 1, "max_background_responses": 3}
    async with storing(tmp_path, engine, **more) as gateway:
        gateway.http.headers["authorization"] = "Bearer any"  # The SDK's, which names a tenant.
        yield gateway


def sdk(gateway: Storing) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        http_client=gateway.http, base_url="http://gateway/v1", api_key="any", max_retries=0
    )


async def read(stream: Any) -> list[dict[str, Any]]:
    events = [json.loads(event.to_json()) async for event in stream]
    for event in events:
        KNOWN.validate_python(event)
    return events


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [event["sequence_number"] for event in events]


async def test_a_stored_response_is_streamed_again(gateway: Storing) -> None:
    tools = [WEATHER, NOW]
    whole = (await gateway.http.post(URL, json={"input": "Hi", "tools": tools})).json()
    client = sdk(gateway)
    events = await read(await client.responses.retrieve(whole["id"], stream=True))
    assert numbers(events) == list(range(len(events)))
    assert events[-1]["response"]["output"] == whole["output"]
    assert plain(built(events)) == plain(whole["output"])
    for event in events:
        if event["type"] != "response.queued":
            check_event(event)
    for after in range(len(events)):
        rest = await read(
            await client.responses.retrieve(whole["id"], stream=True, starting_after=after)
        )
        assert rest == events[after + 1 :] or (after == len(events) - 1 and len(rest) == 1)
    included = await client.responses.retrieve(
        whole["id"], include=["message.output_text.logprobs"]
    )
    assert json.loads(included.to_json()) == json.loads(json.dumps(whole))


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true&starting_after=-5", "starting_after"),
        ("starting_after=5", "starting_after"),
        ("include=nonsense", "include"),
        ("stream=maybe", "stream"),
        ("streem=true", "streem"),
    ],
)
async def test_senseless_parameters(gateway: Storing, query: str, param: str) -> None:
    whole = (await gateway.http.post(URL, json={"input": "Hi"})).json()
    answer = await gateway.http.get(f"{URL}/{whole['id']}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_number_that_no_event_has_is_refused(gateway: Storing) -> None:
    """All events of a whole answer are known."""
    whole = (await gateway.http.post(URL, json={"input": "Hi"})).json()
    client = sdk(gateway)
    last = numbers(await read(await client.responses.retrieve(whole["id"], stream=True)))[-1]
    answer = await gateway.http.get(f"{URL}/{whole['id']}?stream=true&starting_after={last + 1}")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "starting_after")
    assert str(last) in re.findall(r"\d+", error["message"])


async def test_logprobs_of_a_stored_response(gateway: Storing) -> None:
    gateway.engine.script = say("Yes, and a few more characters.")
    asked = {"input": "Hi", "include": ["message.output_text.logprobs"]}
    whole = (await gateway.http.post(URL, json=asked)).json()
    events = await read(await sdk(gateway).responses.retrieve(whole["id"], stream=True))
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    told = [each for delta in deltas for each in delta["logprobs"]]
    assert told == whole["output"][0]["content"][0]["logprobs"]


async def test_in_the_background_and_streamed(gateway: Storing) -> None:
    client = sdk(gateway)
    async with running(gateway):
        events = await read(
            await client.responses.create(
                model=None,  # type: ignore[arg-type]
                input="Hi",
                tools=[WEATHER, NOW],  # type: ignore[list-item]
                background=True,
                stream=True,
            )
        )
    assert numbers(events) == list(range(len(events)))
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    last = events[-1]["response"]
    assert (last["status"], last["background"]) == ("completed", True)
    assert plain(built([events[0], *events[2:]])) == plain(last["output"])
    assert await seen(gateway, last["id"]) == json.loads(json.dumps(last))
    again = await read(await client.responses.retrieve(last["id"], stream=True, starting_after=7))
    assert again == events[8:]


@pytest.mark.parametrize("how", ["cancelled", "deleted", "left"])
async def test_no_engine_goes_on_with_one_that_is_withdrawn(gateway: Storing, how: str) -> None:
    """It does with one whose runner leaves, as another may take it up."""
    gateway.engine.script = lambda prompt, params: iter([1000.0])
    streaming = await queued(gateway)
    (id,) = await open_ones(gateway)
    async with asyncio.timeout(20), running(gateway):
        while not gateway.engine.generations:
            await asyncio.sleep(0.01)
        if how == "cancelled":
            await gateway.http.post(f"{URL}/{id}/cancel")
        elif how == "deleted":
            await gateway.http.delete(f"{URL}/{id}")
        if how != "left":
            await gateway.engine.generations[0].aborted.wait()
    assert gateway.engine.generations[0].aborted.is_set()
    assert gateway.engine.generations[0].withdrawn == (how != "left")
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)


async def queued(gateway: Storing) -> asyncio.Task[httpx.Response]:
    """A streamed response that waits for a runner."""
    streaming = asyncio.create_task(
        gateway.http.post(URL, json={"input": "Hi", "background": True, "stream": True})
    )
    # Rows of a database tell nobody that they have changed: here and below they are read again.
    while gateway.store.background is None or not await open_ones(gateway):
        await asyncio.sleep(0.01)
    return streaming


async def partly_seen(gateway: Storing) -> tuple[asyncio.Task[httpx.Response], dict[str, Any]]:
    """A streamed background response, and as what it is stored, when its runner has died after a
    part of it."""
    streaming = await queued(gateway)
    (id,) = await open_ones(gateway)
    async with running(gateway):
        while not (found := await seen(gateway, id))["output"]:
            await asyncio.sleep(0.01)
    return streaming, found


async def test_cut_off_and_gone_on_from_after_the_runner_has_died(gateway: Storing) -> None:
    """What was seen of the first runner's answer, and the rest of the second's, are one."""
    text = "A long answer, of which a part is seen, and then the rest of it. " * 3

    def halting(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        for number, character in enumerate(text):
            if number == 100:
                yield 1000.0  # type: ignore[misc]
            yield [SequenceDelta(index=0, text=character, token_ids=[ord(character)])]
        yield [SequenceDelta(index=0, token_ids=[END], finish_reason="stop")]

    gateway.engine.script = halting
    begun, found = await partly_seen(gateway)
    id = found["id"]
    assert found["status"] == "in_progress"
    response = msgspec.convert(found, Response)
    events = LaterEvents(-1)
    assert not write_events(events, response)
    first_seed = gateway.engine.submitted[-1][1].seed
    gateway.engine.script = say(text)
    async with running(gateway):
        await until(gateway, id, "completed")
    assert gateway.engine.submitted[-1][1].seed == first_seed is not None
    rest = await read(
        await sdk(gateway).responses.retrieve(id, stream=True, starting_after=events.latest)
    )
    seen_events = [json.loads(each.split("data: ")[1]) for each in written(events)]
    assert numbers([*seen_events, *rest]) == list(range(len(seen_events) + len(rest)))
    del seen_events[1]  # queued
    assert built([*seen_events, *rest])[0]["content"][0]["text"] == f"{text}0"
    streamed = (await begun).text
    assert streamed.count("event: response.completed") == 1
    assert f'"text":"{text}0"' in streamed


@pytest.mark.parametrize("comes_back", [False, True])
async def test_what_was_seen_is_gone_on_with_by_what_computed_it_or_by_nobody(
    gateway: Storing, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """The engine core comes back as another while there is no runner."""
    monkeypatch.setattr(computing, "SETTLING", 0.0)
    engine, text = gateway.engine, "A long answer, of which a part is seen. "

    def halting(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        yield [SequenceDelta(index=0, text=text, token_ids=[65])]
        yield 1000.0

    engine.script = halting
    streaming, found = await partly_seen(gateway)
    id = found["id"]
    assert found["output"][0]["content"][0]["text"] == text
    engine.script = say(text)
    former, asked = engine.status, len(engine.submitted)
    engine.status = status(fingerprint="another")
    engine.undecided = int(comes_back)
    async with running(gateway):
        if comes_back:
            while not await postponed(gateway):  # a row, too
                await asyncio.sleep(0.01)
            assert (await seen(gateway, id))["status"] == "in_progress"
            engine.status, engine.undecided = former, 0
            done = await until(gateway, id, "completed")
            assert done["output"][0]["content"][0]["text"] == f"{text}0"
            terms = engine.terms[-1]
            assert terms is not None
            assert terms.fingerprint == former.fingerprint
        else:
            failed = await until(gateway, id, "failed")
            assert failed["error"]["code"] == "server_error"
            assert fingerprint_name("another") in failed["error"]["message"]
            assert len(engine.submitted) == asked
    await streaming


async def postponed(gateway: Storing) -> bool:
    """Whether nobody works on the only one that is open, as there is no room for it."""

    records = gateway.store.background
    assert records is not None
    (row,) = await records._database.read(lambda c: list(c.execute(select(background))))
    return row.runner == "" and row.not_before > 0


async def open_ones(gateway: Storing) -> list[str]:
    """Ids of responses in the background that haven't ended."""
    records = gateway.store.background
    assert records is not None
    return await records._database.read(lambda c: list(c.scalars(select(background.c.id))))


def written(events: LaterEvents) -> list[str]:
    return [each for each in events.out.decode().split("\n\n") if each]


async def test_so_many_may_be_streamed(gateway: Storing) -> None:
    queued = [await begin(gateway) for _ in range(3)]
    path = f"{URL}/{queued[0]['id']}?stream=true"
    open_ones = [asyncio.create_task(gateway.http.get(path)) for _ in range(3)]
    while gateway.app.state.service.followers.open < 3:
        await asyncio.sleep(0.01)
    answer = await gateway.http.get(path)
    assert (answer.status_code, "3 streams of stored responses" in answer.text) == (429, True)
    await gateway.http.delete(f"{URL}/{queued[0]['id']}")
    await asyncio.gather(*open_ones)


@pytest.mark.parametrize("how", ["cancelled", "failed", "deleted"])
async def test_a_stream_ends_when_the_response_does(gateway: Storing, how: str) -> None:
    gateway.engine.script = ENDLESS
    if how == "failed":
        gateway.engine.script = lambda prompt, params: iter([RuntimeError("broken")])
    queued = await begin(gateway)
    stream = asyncio.create_task(gateway.http.get(f"{URL}/{queued['id']}?stream=true"))
    await asyncio.sleep(0)
    async with running(gateway):
        if how != "failed":
            await until(gateway, queued["id"], "in_progress")
        if how == "cancelled":
            await gateway.http.post(f"{URL}/{queued['id']}/cancel")
        if how == "deleted":
            await gateway.http.delete(f"{URL}/{queued['id']}")
        answer = await asyncio.wait_for(stream, 60)
    if how == "deleted" and answer.status_code == 404:
        return
    last = json.loads(answer.text.rstrip().rpartition("data: ")[2])
    if how == "deleted":
        assert (last["type"], last["code"]) == ("error", "response_not_found")
        events = answer.text.rstrip().split("\n\n")
        numbers = [json.loads(each.rpartition("data: ")[2])["sequence_number"] for each in events]
        assert numbers == list(range(len(numbers)))
    else:
        assert last["response"]["status"] == how


def test_its_events_are_the_same_however_far_the_answer_had_come() -> None:
    """A random walk through the states of an answer, each looked at or not."""
    dice = random.Random(1)
    items = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "h" * 40}]},
        {"type": "message", "content": [{"type": "output_text", "text": "Zürich 👋" * 5}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 123456789012}'},
    ]
    output = [
        {"id": f"{kind}_x_{index}", "status": "completed", **item}
        for index, (kind, item) in enumerate(zip(("rs", "msg", "fc"), items, strict=True))
    ]
    fields = {
        **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), 1.0),
        "id": "resp_x",
        "created_at": 1,
        "model": "m",
        "text": {},
        "metadata": {},
        "background": True,
    }

    def response(status: str, shown: list[OutputItem]) -> Response:
        return msgspec.convert(
            {
                **fields,
                "object": "response",
                "status": status,
                "output": msgspec.to_builtins(shown),
            },
            Response,
        )

    whole = LaterEvents(-1)
    final = response("completed", msgspec.convert(output, list[OutputItem]))
    assert write_events(whole, final)
    stream = live_stream(final)
    for _ in range(50):
        told, seen_so_far, after = AnswerSoFar(), "", -1
        place = 0
        while place < len(stream):
            step = dice.randrange(1, 400)
            told.take(stream[place : place + step])
            place += step
            events = LaterEvents(after)
            assert not write_events(events, response("in_progress", told.items))
            after, seen_so_far = events.latest, seen_so_far + events.out.decode()
        assert told.whole is not None
        events = LaterEvents(after)
        assert write_events(events, final)
        assert seen_so_far + events.out.decode() == whole.out.decode()


def live_stream(final: Response) -> bytes:
    """The events of the answer as they would come, with pieces of other sizes."""
    from penstock_gateway.responses import replay

    before, replay.STEP = replay.STEP, 3
    try:
        events = LaterEvents(-1)
        write_events(events, final)
    finally:
        replay.STEP = before
    return bytes(events.out)
