"""Streams of responses and messages, whose events have names, go on from any of them; those of chat
and completions from any number of tokens."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from penstock import resumed_events
from penstock.cli.http_client import LAST_EVENTS
from testing.serving import Server, wait_until
from tests.system.test_resumed_streams import (
    ASKED,
    BODIES,
    COMPLETIONS,
    LONG,
    PATIENCE,
    RESUMABLE,
    Event,
    ask,
    events_of,
    gained,
)

pytestmark = pytest.mark.timeout(600)

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
WEATHER = {"type": "object", "properties": {"where": {"type": "string", "maxLength": 12}}}
NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "a response": (
        RESPONSES,
        {"input": "Count, and say why.", "max_output_tokens": 40, "temperature": 1.2},
    ),
    "a response with log-probabilities": (
        RESPONSES,
        {
            "input": "Count.",
            "max_output_tokens": 30,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
        },
    ),
    "a response with a call": (
        RESPONSES,
        {
            "input": "Count.",
            "max_output_tokens": 60,
            "tools": [{"type": "function", "name": "look", "parameters": WEATHER}],
            "tool_choice": "required",
        },
    ),
    "a message": (MESSAGES, {"messages": ASKED, "max_tokens": 40, "temperature": 0.9}),
    "a message with a call": (
        MESSAGES,
        {
            "messages": ASKED,
            "max_tokens": 60,
            "tools": [{"name": "look", "input_schema": WEATHER}],
            "tool_choice": {"type": "any"},
        },
    ),
}


def named_events(reply: httpx.Response) -> list[Event]:
    """Of a stream whose events have types."""
    assert reply.status_code == 200, reply.text
    found = []
    for block in reply.text.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        assert json.loads(fields["data"])["type"] == fields["event"]
        found.append(Event(fields.get("id"), fields["data"]))
    return found


def told(events: list[Event]) -> list[Any]:
    """All that they say, where pieces of the same text are one."""
    found: list[Any] = []
    for event in events:
        said = json.loads(event.data)
        said.pop("sequence_number", None)
        said.get("response", {}).pop("completed_at", None)
        delta, logprobs = said.pop("delta", None), said.pop("logprobs", [])
        if isinstance(delta, dict) and str(delta.get("type")).endswith("_delta"):
            said["kind"] = delta.pop("type")
            (delta,) = delta.values()
        if found and isinstance(delta, str) and found[-1][0] == said:
            found[-1][1] += delta
            found[-1][2].extend(logprobs)
        else:
            found.append([said, delta, logprobs])
    return found


@pytest.mark.parametrize("name", NAMED)
def test_events_with_names_go_on_from_every_one(server: Server, name: str) -> None:
    path, body = NAMED[name]
    body = {"model": server.model, **body, **RESUMABLE}
    events = named_events(ask(server, path, body))
    places = [place for place, event in enumerate(events) if event.id is not None]
    # On a busy machine several tokens come at once.
    assert len(places) >= 2
    for place in {0, 1, len(places) // 2, len(places) - 2, len(places) - 1}:
        had = events[: places[place] + 1]
        rest = named_events(ask(server, path, body, had[-1].id))
        assert told([*had, *rest]) == told(events)
        if path == RESPONSES:
            numbers = [json.loads(event.data)["sequence_number"] for event in [*had, *rest]]
            assert numbers == list(range(len(numbers)))
    assert len(said := heard(server.url, (path, body))) >= 2
    assert said[-1] in LAST_EVENTS


def heard(url: str, asked: tuple[str, dict[str, Any]]) -> list[Any]:
    """All that a stream says to a client that goes on with it, but for what was drawn."""
    path, body = asked
    said = resumed_events(url, body, path=path, patience=PATIENCE)
    events = [Event(None, json.dumps(each)) for each in said]
    texts = [[kind, delta] for said, delta, _ in told(events) if (kind := said["type"]) and delta]
    return [*texts, json.loads(events[-1].data)["type"]]


def test_they_outlast_gateways_that_leave(start_server: Callable[..., Server]) -> None:
    """A gateway that is renewed has no time for them, and another one goes on with them: its
    clients hear of no error."""
    server = start_server("--gateways", "2", "--shutdown-timeout", "1")
    asked = []
    for path, body in NAMED.values():
        limit = "max_tokens" if path == MESSAGES else "max_output_tokens"
        more = {} if "tools" in body else {limit: 200}
        asked.append((path, {"model": server.model, "seed": 7, **body, **more}))
    with ThreadPoolExecutor(len(asked)) as pool:
        undisturbed = list(pool.map(partial(heard, server.url), asked))
        reading = [pool.submit(heard, server.url, each) for each in asked]
        wait_until(lambda: running(server) > 1)
        server.process.send_signal(signal.SIGUSR2)
        assert [each.result(PATIENCE) for each in reading] == undisturbed
    wait_until(lambda: 'event="gateways restarted"' in server.stderr)
    assert "without completing" not in server.stderr


def running(server: Server) -> int:
    return sum(each["running"] for each in server.get("/status")[1]["engines"])


def test_what_may_change_meanwhile_is_not_gone_on_with(server: Server) -> None:
    body = {"model": server.model, "input": "Hi", "conversation": "conv_1", **RESUMABLE}
    reply = ask(server, RESPONSES, body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "stream_options.resumable"


CHARACTERS = {"structured_outputs": {"regex": "(é|👋|語|\U0001f469\u200d\U0001f680){8}"}}
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "a call of a tool": BODIES["a call of a tool"],
    "stop strings": (
        COMPLETIONS,
        {"prompt": "One two", "stop": ["nd then", "e q", "zz"], "temperature": 0.8, **LONG},
    ),
    "characters of several tokens": (
        COMPLETIONS,
        {"prompt": "One two", "max_tokens": 120, "temperature": 1.5, "logprobs": 0, **CHARACTERS},
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_it_goes_on_from_any_number_of_tokens(server: Server, name: str) -> None:
    """Whoever writes ids of their own gets ends of the same answer: also within a character, a
    tool's name, or what may become a stop string."""
    path, body = COUNTED[name]
    body = {"model": server.model, "seed": 5, **body, **RESUMABLE}
    events = events_of(ask(server, path, body))
    whole, last = gained(events), str(events[-1].id)
    origin, _, count = last.partition(".")
    most = int(count.rstrip("e"))
    texts = [place for place in whole if place.endswith((".text", ".content", ".arguments"))]
    assert texts
    assert most > 5
    left = dict.fromkeys(texts, -1)
    for tokens in range(most - 1, -1, -1):
        rest = gained(events_of(ask(server, path, body, f"{origin}.{tokens}")))
        assert rest["id"] == whole["id"]
        for place in texts:
            found = rest.get(place) or ""
            assert whole[place].endswith(found)
            assert "\ufffd" not in found
            assert len(found) >= left[place]
            left[place] = len(found)
    assert left == {place: len(whole[place]) for place in texts}
    reply = ask(server, path, body, f"{origin}.{most + 1}")
    assert reply.status_code == 400
    assert f"no more than {most} tokens" in reply.json()["error"]["message"]
    for ended in (2, most + 1, 999_999_999):
        reply = ask(server, path, body, f"{origin}.{ended}e")
        assert reply.status_code == 400
        assert f"ends after {most} tokens, not after {ended}" in reply.json()["error"]["message"]
