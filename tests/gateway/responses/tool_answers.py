"""Requests with tools and what they are answered: as events, put together, and as a whole reply."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from penstock.client import SequenceDelta
from penstock.request.sampling_params import SamplingParams
from tests.gateway.fake_engine import END, MODEL, Script, Step

URL = "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": SCHEMA,
    "strict": True,
}
NOW = {"type": "function", "name": "now"}
ARGUMENTS = '{"city": "Zür\\u0069ch é👋"}'
CALL = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
HERMES = f"<tool_call>\n{CALL}\n</tool_call>"
KNOWN: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
NAMED = {"type": "function", "name": "get_weather"}


def said(text: str, *, seed: int | None = None, finish: str = "stop") -> Script:
    """A script: `text` in pieces, cut by the seed; None: a piece for each character."""
    dice = random.Random(seed)
    places = range(1, len(text))
    if seed is not None and len(text) > 1:
        places = sorted(dice.sample(places, dice.randrange(len(text))))
    cuts = [0, *places, len(text)]
    pieces = [text[a:b] for a, b in pairwise(cuts)]

    def script(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        for piece in pieces:
            yield [SequenceDelta(index=0, text=piece, token_ids=[65] * len(piece))]
        last = [END] if finish == "stop" else []
        yield [SequenceDelta(index=0, token_ids=last, finish_reason=finish)]  # type: ignore[arg-type]

    return script


def body(**fields: Any) -> dict[str, Any]:
    return {"input": "Hi", "tools": [WEATHER, NOW], "model": MODEL, **fields}


async def whole_reply(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(URL, json=body(**fields))
    assert response.status_code == 200, response.text
    Response.model_validate(response.json(), strict=True)
    return response.json()


async def events_of(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """Each is one that the SDK knows, named by its type and numbered."""
    return events_from(await http.post(URL, json=body(stream=True, **fields)))


def events_from(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    events: list[dict[str, Any]] = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        KNOWN.validate_python(event)
        events.append(event)
    return events


TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}


def built(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a client adds them up from the deltas. Every event in its place: one item at a
    time, its own id and index in all that it says, what is done equals what came."""
    items: list[dict[str, Any]] = []
    open_item: dict[str, Any] | None = None
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            assert event["output_index"] == len(items)
            open_item = event["item"] | {"text": "", "stage": "begun"}
            assert open_item["status"] == "in_progress"
            continue
        assert open_item is not None, kind
        assert event["output_index"] == len(items)
        if kind == "output_item.done":
            done = event["item"]
            assert (done["id"], done["type"]) == (open_item["id"], open_item["type"])
            assert open_item["stage"] == "done"
            if done["type"] == "function_call":
                assert done["arguments"] == open_item["text"]
                assert (done["name"], done["call_id"]) == (open_item["name"], open_item["call_id"])
            else:
                assert done["content"][0]["text"] == open_item["text"]
            items.append(done)
            open_item = None
            continue
        assert event["item_id"] == open_item["id"]
        _part(event, kind, open_item)
    assert open_item is None
    return items


def _part(event: dict[str, Any], kind: str, item: dict[str, Any]) -> None:
    """Checks an event within an item, whose `text` and `stage` it changes."""
    text = TEXTS.get(item["type"])
    if text is not None:
        assert event["content_index"] == 0
    name = text or "function_call_arguments"
    if kind == "content_part.added":
        assert (item["stage"], event["part"]["type"], event["part"]["text"]) == ("begun", text, "")
        item["stage"] = "part"
    elif kind == f"{name}.delta":
        assert item["stage"] == ("begun" if text is None else "part")
        assert event["delta"] or event["logprobs"]
        item["text"] += event["delta"]
    elif kind == f"{name}.done":
        assert event["arguments" if text is None else "text"] == item["text"]
        item["stage"] = "done" if text is None else "text done"
    else:
        assert kind == "content_part.done"
        assert item["stage"] == "text done"
        assert event["part"]["text"] == item["text"]
        item["stage"] = "done"


def plain(items: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """What the items say, without their ids."""
    said = []
    for item in items:
        if item["type"] == "function_call":
            said.append(("function_call", item["status"], item["name"], item["arguments"]))
        else:
            [part] = item["content"]
            said.append((item["type"], item["status"], part["text"]))
    return said


def message(text: str, status: str = "completed") -> tuple[str, ...]:
    return ("message", status, text)


def thought(text: str, status: str = "completed") -> tuple[str, ...]:
    return ("reasoning", status, text)


def called(arguments: str = ARGUMENTS, status: str = "completed") -> tuple[str, ...]:
    return ("function_call", status, "get_weather", arguments)
