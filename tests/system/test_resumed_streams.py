"""A stream that breaks off goes on from any of its events: what comes is what would have come."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import pytest

from penstock import resumed_events
from penstock.cli.http_client import HttpClient
from testing.metrics_page import PORTS, Page, port_of, read_page
from testing.serving import Server, wait_until

pytestmark = pytest.mark.timeout(600)

PATIENCE = 300
RESUMABLE = {"stream": True, "stream_options": {"resumable": True}}
ASKED = [{"role": "user", "content": "Count, and say why."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"where": {"type": "string", "maxLength": 12}},
            "required": ["where"],
        },
    },
}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a seed that nobody chose": (CHAT, {"messages": ASKED, "temperature": 1.3, **LONG}),
    "three choices": (CHAT, {"messages": ASKED, "n": 3, "temperature": 1.0, **LONG}),
    "log-probabilities": (
        CHAT,
        {"messages": ASKED, "logprobs": True, "top_logprobs": 3, "return_token_ids": True, **LONG},
    ),
    "a call of a tool": (
        CHAT,
        {"messages": ASKED, "tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
    ),
    "a schema": (
        CHAT,
        {
            "messages": ASKED,
            "max_tokens": 40,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "a",
                    "schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 6},
                },
            },
        },
    ),
    "two prompts, with echo": (
        COMPLETIONS,
        {"prompt": ["One two", "A b c"], "n": 2, "echo": True, "logprobs": 2, **LONG},
    ),
    "a stop string": (
        COMPLETIONS,
        {"prompt": "One two", "stop": ["e", "a"], "temperature": 1.5, "max_tokens": 40},
    ),
}


class Event(NamedTuple):
    id: str | None
    data: str


def ask(server: Server, path: str, body: dict[str, Any], last: str | None = None) -> httpx.Response:
    headers = {} if last is None else {"Last-Event-ID": last}
    return httpx.post(server.url + path, json=body, headers=headers, timeout=PATIENCE)


def events_of(reply: httpx.Response) -> list[Event]:
    assert reply.status_code == 200, reply.text
    found = []
    for block in reply.text.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        found.append(Event(fields.get("id"), fields["data"]))
    assert found.pop().data == "[DONE]"
    return found


def gained(events: list[Event]) -> dict[str, Any]:
    """All that the events say, put together: a list for what may come in several pieces."""
    found: dict[str, Any] = defaultdict(list)
    for event in events:
        chunk = json.loads(event.data)
        for field in ("id", "created", "model", "system_fingerprint"):
            assert found.setdefault(field, chunk[field]) == chunk[field]
        for choice in chunk["choices"]:
            add(found, f"choice {choice.pop('index')}", choice)
    return {
        name: "".join(v) if v and isinstance(v, list) and isinstance(v[0], str) else v
        for name, v in found.items()
    }


def add(found: dict[str, Any], place: str, value: Any) -> None:
    match value:
        case dict():
            for name, each in value.items():
                add(found, f"{place}.{name}", each)
        case list() if place.endswith("tool_calls"):
            for each in value:
                add(found, f"{place}.{each.pop('index')}", each)
        case list():
            found[place] += value
        case None:
            found[place] += []
        case _:
            found[place].append(value)


def computed(events: list[Event]) -> dict[str, Any]:
    """What the events say, without what each answer to a request draws anew."""
    found = gained(events)
    del found["id"], found["created"]
    drawn = [name for name in found if "tool_calls" in name and name.endswith(".id")]
    return {name: said for name, said in found.items() if name not in drawn}


@pytest.mark.parametrize("name", BODIES)
def test_it_goes_on_from_every_event(server: Server, name: str) -> None:
    path, body = BODIES[name]
    body = {"model": server.model, **body, **RESUMABLE}
    events = events_of(ask(server, path, body))
    whole = gained(events)
    places = [place for place, event in enumerate(events) if event.id is not None]
    assert places
    assert places[-1] == len(events) - 1
    for place in {0, 1, len(places) // 2, len(places) - 2, len(places) - 1}:
        had = events[: places[max(0, min(place, len(places) - 1))] + 1]
        rest = events_of(ask(server, path, body, had[-1].id))
        assert gained([*had, *rest]) == whole


def test_the_rest_goes_on_from_its_own_events(server: Server) -> None:
    """A stream may break more than once."""
    path, body = BODIES["three choices"]
    body = {"model": server.model, **body, **RESUMABLE}
    whole = events_of(ask(server, path, body))
    had: list[Event] = []
    rest = whole
    while len(rest) > 20:
        kept = max(place for place, event in enumerate(rest[:20]) if event.id is not None) + 1
        had += rest[:kept]
        rest = events_of(ask(server, path, body, had[-1].id))
    assert len(had) >= 20
    assert gained(had + rest) == gained(whole)


def refusal(server: Server, body: dict[str, Any], last: str) -> str:
    reply = ask(server, CHAT, body, last)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == "Last-Event-ID"
    message: str = error["message"]
    return message


def test_what_it_cannot_go_on_from_is_said(server: Server) -> None:
    body = {"model": server.model, "messages": ASKED, **LONG, **RESUMABLE}
    last = next(event.id for event in events_of(ask(server, CHAT, body)) if event.id)
    origin, _, count = last.partition(".")
    assert "another body" in refusal(server, {**body, "max_tokens": 41}, last)
    assert "no event of this server" in refusal(server, body, "7")
    assert "no event of this server" in refusal(server, body, f"{origin}.{count}-")
    assert "no event of this server" in refusal(server, body, f"AA=={'A' * (len(origin) - 4)}.1")
    other = ("A" if origin[40] != "A" else "B").join((origin[:40], origin[41:]))
    assert "damaged" in refusal(server, body, f"{other}.{count}")
    assert "choices" in refusal(server, body, f"{origin}.1-1")
    assert "no more than 40 tokens" in refusal(server, body, f"{origin}.999999999")
    silent = {**body, "stream_options": {"include_usage": True}}
    assert "stream_options.resumable" in refusal(server, silent, last)
    other_tenant = httpx.post(
        server.url + CHAT,
        json=body,
        headers={"Last-Event-ID": last, "Authorization": "Bearer another"},
        timeout=PATIENCE,
    )
    assert "another tenant" in other_tenant.json()["error"]["message"]
    many = {**body, "n": 33, "max_tokens": 1}
    assert "at most 32 choices" in ask(server, CHAT, many).json()["error"]["message"]


def test_a_key_gives_the_same_answer_again(server: Server) -> None:
    body = {"model": server.model, "messages": ASKED, "temperature": 1.5, **LONG}

    def answer(key: str, **changes: Any) -> tuple[str, str]:
        reply = httpx.post(
            server.url + CHAT,
            json={**body, **changes},
            headers={"Idempotency-Key": key},
            timeout=PATIENCE,
        ).json()
        return reply["id"], reply["choices"][0]["message"]["content"]

    first = answer("one")
    assert answer("one") == first
    ids, texts = zip(first, answer("two"), answer("one", max_tokens=39), strict=True)
    assert len(set(ids)) == 3
    assert len(set(texts)) == 3
    refused = httpx.post(server.url + CHAT, json=body, headers={"Idempotency-Key": "x" * 300})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "Idempotency-Key"


def test_the_client_gets_what_a_stream_says(server: Server) -> None:
    body = {"model": server.model, "messages": ASKED, "seed": 3, **LONG}
    events = [Event(None, json.dumps(event)) for event in resumed_events(server.url, body)]
    told, whole = gained(events), gained(events_of(ask(server, CHAT, {**body, **RESUMABLE})))
    for found in (told, whole):
        del found["id"], found["created"]
    assert told == whole


class Counting(HttpClient):
    """Counts for a reader how often its stream has gone on from an event."""

    def __init__(self, reader: Reader, *given: Any) -> None:
        super().__init__(*given)
        self._reader = reader

    def _events(self, path: str, body: dict[str, Any], last: str | None) -> Iterator[Any]:
        self._reader.resumed += last is not None
        return super()._events(path, body, last)


class Reader:
    """Streams that are read at the same time, each by a client that goes on where it breaks off."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.begun = 0
        self.ended = 0
        self.resumed = 0
        """Streams that went on from an event."""
        self.gaps: list[float] = []
        """The longest silence of each, seconds."""

    def read(self, asked: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        path, body = asked
        events, longest, before = [], 0.0, time.monotonic()
        client = Counting(self, self._server.url, None, PATIENCE)
        for event in client.resumed_events(path, body, PATIENCE):
            now = time.monotonic()
            longest, before = max(longest, now - before), now
            self.begun += not events
            events.append(Event(None, json.dumps(event)))
        self.ended += 1
        self.gaps.append(longest)
        return computed(events)


def engine_page(server: Server) -> Page:
    return read_page(port_of(server, "engine"))


def test_a_broken_connection_costs_nothing(start_server: Callable[..., Server]) -> None:
    """What goes on in time is computed once, and equals what was never broken."""
    server = start_server(*PORTS)
    for name in ("three choices", "log-probabilities"):
        path, body = BODIES[name]
        body = {"model": server.model, **body, **RESUMABLE, "max_tokens": 100, "seed": 7}
        had: list[Event] = []
        with httpx.stream("POST", server.url + path, json=body, timeout=PATIENCE) as reply:
            blocks = reply.iter_lines()
            id = None
            for line in blocks:
                if line.startswith("id: "):
                    id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    had.append(Event(id, line.removeprefix("data: ")))
                    id = None
                    if len(had) > 20 and had[-1].id is not None:
                        break
        wait_until(lambda: engine_page(server).value("penstock:orphaned_requests") == 1)
        before = engine_page(server)
        rest = events_of(ask(server, path, body, had[-1].id))
        after = engine_page(server)
        whole, undisturbed = gained([*had, *rest]), gained(events_of(ask(server, path, body)))
        assert whole.keys() == undisturbed.keys()
        assert {name for name in whole if whole[name] != undisturbed[name]} == {"created", "id"}
        counts = [
            page.labelled("penstock:streams_resumed_total", "how") for page in (before, after)
        ]
        assert counts[1] == {**counts[0], "adopted": counts[0]["adopted"] + 1}
        prompts = [page.values("vllm:prompt_tokens_total") for page in (before, after)]
        assert prompts[0] == prompts[1]


def test_it_goes_on_while_the_worker_is_away(start_server: Callable[..., Server]) -> None:
    """What the model is computed with, which an event's id says, is known all the same: however
    long it loads, or sleeps, a stream waits as any other request. Nothing is kept for it here."""
    server = start_server("--resume-grace-seconds", "0")
    path, body = BODIES["a seed that nobody chose"]
    body = {"model": server.model, **body, **RESUMABLE}
    events = events_of(ask(server, path, body))
    had = events[:10]
    worker = server.child("worker 0")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not server.ready())
    rest = events_of(ask(server, path, body, had[-1].id))
    assert gained([*had, *rest]) == gained(events)
    assert server.post("/sleep?level=2", {})[0] == 200
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, path, body, had[-1].id)
        wait_until(lambda: server.get("/status")[1]["engine"]["waiting"] == 1)
        assert server.post("/wake_up", {})[0] == 200
        rest = events_of(waiting.result(PATIENCE))
    assert gained([*had, *rest]) == gained(events)


def kill_all(server: Server, names: list[str]) -> None:
    """Returns when others have taken their places."""
    killed = {server.child(name) for name in names}
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not killed & set(server.processes().values()))
    wait_until(lambda: set(names) <= set(server.processes()))


def test_answers_outlive_their_gateways(
    start_server: Callable[..., Server], request: pytest.FixtureRequest
) -> None:
    """All gateways are killed under mixed streams, whose clients go on: every answer is whole, and
    that of the undisturbed request."""
    full = request.config.getoption("--long")
    streams, rounds, gateways = (200, 2, 3) if full else (2 * len(BODIES), 1, 2)
    server = start_server("--gateways", str(gateways), "--max-num-seqs", "64", *PORTS)
    names = [f"gateway {number}" for number in range(gateways)]
    asked = []
    for number in range(streams):
        path, body = list(BODIES.values())[number % len(BODIES)]
        more = {"max_tokens": 100} if "ignore_eos" in body else {}
        asked.append((path, {"model": server.model, "seed": number, **body, **more}))
    with ThreadPoolExecutor(streams) as pool:
        undisturbed = list(pool.map(Reader(server).read, asked))
        reader = Reader(server)
        reading = [pool.submit(reader.read, each) for each in asked]
        for _ in range(rounds):
            before, enough = reader.resumed, streams // 2
            wait_until(lambda n=enough: reader.begun > n)
            kill_all(server, names)
            wait_until(lambda n=before: reader.resumed > n)
        disturbed = [each.result(PATIENCE) for each in reading]
    assert disturbed == undisturbed
    went_on = engine_page(server).labelled("penstock:streams_resumed_total", "how")
    assert went_on["adopted"] > 0
    gaps = sorted(reader.gaps)
    print(
        f"{streams} streams, longest silence of each: p50 {gaps[streams // 2]:.2f} s, "
        f"p99 {gaps[-1 - streams // 100]:.2f} s; {went_on}"
    )
