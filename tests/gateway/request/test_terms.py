"""For whom, how soon and until when: what of a request reaches the engine, and what comes back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from typing import Any

import httpx
import pytest

from penstock.client import SequenceDelta
from penstock.errors import Limited, Overloaded
from penstock.protocol.common import SessionTerms
from tests.gateway.fake_engine import FakeEngineClient

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"prompt": "Hi"},
}
DAY = 86_400_000


async def post(
    http: httpx.AsyncClient, url: str = TEXT, headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    return await http.post(url, json=BODIES[url] | fields, headers=headers)


@pytest.mark.parametrize("url", BODIES)
async def test_each_key_is_a_tenant_and_is_not_sent(http, engine, url):
    for headers in (
        {},
        {"authorization": "Bearer sk-uno"},
        {"authorization": "bearer  sk-uno "},
        {"authorization": "Bearer two"},
        {"authorization": "Basic b25lOnR3bw=="},
        {"authorization": "Bearer "},
        {"x-api-key": "sk-uno"},
        {"x-api-key": "two", "authorization": "Basic b25lOnR3bw=="},
        {"x-api-key": "two", "authorization": "Bearer sk-uno"},
    ):
        assert (await post(http, url, headers, user="somebody")).status_code == 200
    none, one, same, two, basic, empty, *named = (terms.tenant for terms in engine.terms)
    assert one == same == hashlib.sha256(b"sk-uno").hexdigest()[:32]
    assert none == basic == empty == ""
    assert named == [one, two, one]
    assert len({none, one, two}) == 3
    assert "sk-uno" not in repr(engine.submitted)


@pytest.mark.parametrize("field", ["tenant", "tenant_id", "x_tenant"])
async def test_no_field_names_a_tenant(http, field):
    assert (await post(http, **{field: "rich"})).status_code == 400


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("salt", ["a", "x" * 1024, "", None])
async def test_cache_salt(http, engine, url, salt):
    assert (await post(http, url, cache_salt=salt)).status_code == 200
    assert engine.terms[0].cache_salt == (salt or "")


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("priority", [-100, -1, 0, 7, 100, None])
async def test_priority(http, engine, url, priority):
    assert (await post(http, url, priority=priority)).status_code == 200
    assert engine.terms[0].priority == (priority or 0)


@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"cache_salt": "x" * 1025}, {}, "cache_salt"),
        ({"cache_salt": 1}, {}, "cache_salt"),
        ({"priority": -101}, {}, "priority"),
        ({"priority": 101}, {}, "priority"),
        ({"priority": 0.5}, {}, "priority"),
        ({"deadline_ms": 0}, {}, "deadline_ms"),
        ({"deadline_ms": -5}, {}, "deadline_ms"),
        ({"deadline_ms": DAY + 1}, {}, "deadline_ms"),
        ({"deadline_ms": "soon"}, {}, "deadline_ms"),
        ({}, {"x-deadline-ms": "0"}, "x-deadline-ms"),
        ({}, {"x-deadline-ms": "-1"}, "x-deadline-ms"),
        ({}, {"x-deadline-ms": "1.5"}, "x-deadline-ms"),
        ({}, {"x-deadline-ms": "soon"}, "x-deadline-ms"),
        ({}, {"x-deadline-ms": str(DAY + 1)}, "x-deadline-ms"),
        ({}, {"x-deadline-ms": "9" * 400}, "x-deadline-ms"),
    ],
)
async def test_wrong_values_are_named(http, engine, fields, headers, param):
    response = await post(http, TEXT, headers, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("fields", "headers", "left"),
    [
        ({"deadline_ms": 5000}, {}, 5.0),
        ({}, {"x-deadline-ms": "5000"}, 5.0),
        ({"deadline_ms": 9000}, {"x-deadline-ms": "5000"}, 5.0),
        ({"deadline_ms": 5000}, {"x-deadline-ms": "9000"}, 5.0),
    ],
)
async def test_the_earlier_deadline_counts_from_when_the_request_came(
    http, engine, fields, headers, left
):
    before = time.monotonic()
    assert (await post(http, CHAT, headers, **fields)).status_code == 200
    assert before + left <= engine.terms[0].deadline <= time.monotonic() + left


async def test_without_a_deadline_there_is_none(http, engine):
    await post(http)
    assert engine.terms[0].deadline is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("url", BODIES)
async def test_a_timeout_before_the_first_token_is_a_408(http, engine, url, stream):
    engine.script = lambda prompt, params: iter([[SequenceDelta(index=0, finish_reason="timeout")]])
    response = await post(http, url, stream=stream)
    assert response.status_code == 408
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("timeout_error", "request_timeout")


async def test_a_timeout_in_an_open_stream_is_an_error_event(http, engine):
    engine.script = lambda prompt, params: iter(
        [
            [SequenceDelta(index=0, text="a", token_ids=[97])],
            [SequenceDelta(index=0, text="b", token_ids=[98], finish_reason="timeout")],
        ]
    )
    response = await post(http, TEXT, stream=True)
    assert response.status_code == 200
    *events, last = [e for e in response.text.split("\n\n") if e.startswith("data: {")]
    assert json.loads(events[0].removeprefix("data: "))["choices"][0]["text"] == "a"
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_timeout"
    assert response.text.endswith("data: [DONE]\n\n")


async def test_a_deadline_that_passes_before_the_engine_is_asked_is_a_408(
    engine: FakeEngineClient, http, monkeypatch
):
    """Here because the template takes too long."""
    rendered = engine.template.rendered

    async def slow(*arguments: Any, **keywords: Any) -> Any:
        await asyncio.sleep(0.02)
        return await rendered(*arguments, **keywords)

    monkeypatch.setattr(engine.template, "rendered", slow)
    response = await post(http, CHAT, deadline_ms=10)
    assert response.status_code == 408
    assert response.json()["error"]["code"] == "request_timeout"
    assert engine.submitted == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "kind", "code", "after"),
    [
        (Limited("so many", retry_after=2.1), 429, "rate_limit_error", "rate_limit_exceeded", "3"),
        (Limited("so many", retry_after=0.1), 429, "rate_limit_error", "rate_limit_exceeded", "1"),
        (Overloaded("late", retry_after=7.0), 503, "server_error", "overloaded", "7"),
    ],
)
async def test_a_refusal_says_when_to_come_back(
    http, engine, refusal, status, kind, code, after, stream
):
    engine.refusal = refusal
    response = await post(http, CHAT, stream=stream)
    assert response.status_code == status
    assert response.headers["retry-after"] == after
    error = response.json()["error"]
    assert (error["message"], error["type"], error["code"]) == (str(refusal), kind, code)


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize(
    ("fields", "headers", "expected"),
    [
        ({}, {}, None),
        ({"session_id": ""}, {}, None),
        ({"session_id": "a"}, {}, SessionTerms("a")),
        ({}, {"x-session-id": "b"}, SessionTerms("b")),
        ({"session_id": "a"}, {"x-session-id": "b"}, SessionTerms("a")),
        ({"session_id": "a", "kv_retention_seconds": 30}, {}, SessionTerms("a", 30.0)),
        (
            {"session_id": "a", "kv_hint": {"resume_within_s": 2.5}},
            {},
            SessionTerms("a", None, 2.5),
        ),
    ],
)
async def test_the_session_that_a_request_is_a_turn_of(
    http, engine, url, fields, headers, expected
):
    assert (await post(http, url, headers, **fields)).status_code == 200
    assert engine.terms[0].session == expected


@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"session_id": "x" * 257}, {}, "session_id"),
        ({}, {"x-session-id": "x" * 257}, "session_id"),
        ({"session_id": 1}, {}, "session_id"),
        ({"kv_retention_seconds": 5}, {}, "kv_retention_seconds"),
        ({"session_id": "a", "kv_retention_seconds": -1}, {}, "kv_retention_seconds"),
        ({"session_id": "a", "kv_retention_seconds": 86_401}, {}, "kv_retention_seconds"),
        ({"kv_hint": {"resume_within_s": 5}}, {}, "kv_hint"),
        ({"session_id": "a", "kv_hint": {"resume_within_s": -5}}, {}, "kv_hint"),
        ({"session_id": "a", "kv_hint": {"resume_within_s": "soon"}}, {}, None),
        ({"session_id": "a", "kv_hint": {}}, {}, None),
        ({"session_id": "a", "kv_hint": {"keep": True}}, {}, None),
    ],
)
async def test_sessions_that_cannot_be_are_named(http, engine, fields, headers, param):
    response = await post(http, TEXT, headers, **fields)
    assert response.status_code == 400
    assert param is None or response.json()["error"]["param"] == param
    assert engine.submitted == []
