"""Errors of /v1/messages have Anthropic's form; other clients' errors keep theirs."""

from __future__ import annotations

import json
from collections.abc import Iterable

import httpx
import pytest

from penstock.client import SequenceDelta
from penstock.errors import RequestFailed
from penstock.request.sampling_params import SamplingParams
from tests.dialects.anthropic.asking import URL, body, refusal, user
from tests.gateway.fake_engine import MODEL, FakeEngineClient, Step

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/messages/batches/x/y", {}, 404),
        ("POST", "/v1/messages/nonsense", {}, 404),
        ("POST", "/v1/messages/count_tokens//", {}, 404),
        ("GET", "/v1/messages/count_tokens", {}, 405),
        ("GET", "/v1/models/claude", {"anthropic-version": "2023-06-01"}, 404),
        ("GET", "/v1/skills", {"anthropic-version": "2023-06-01"}, 404),
    ],
)
async def test_where_nothing_is_errors_are_anthropics_too(
    http: httpx.AsyncClient, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = await http.request(method, path, headers=headers)
    assert answer.status_code == status
    assert answer.json()["type"] == "error"
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert answer.json()["error"]["type"] == kind
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("version", [None, "2023-06-01", "2026-10-21", "2099-01-01", "latest"])
async def test_versions_that_nobody_knows_are_refused(
    http: httpx.AsyncClient, path: str, version: str | None
) -> None:
    fields = body() if path == "/v1/messages" else {"model": MODEL, "messages": [user("Hi")]}
    headers = {} if version is None else {"anthropic-version": version}
    answer = await http.post(path, json=fields, headers=headers)
    if version in (None, "2023-06-01", "2026-10-21"):
        assert answer.status_code == 200
        return
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert f'anthropic-version is "{version}"' in error["message"]
    assert "2023-06-01" in error["message"]


async def test_other_clients_errors_stay_openais(http: httpx.AsyncClient) -> None:
    for path in ("/v1/models/claude", "/v1/messages-of-others", "/v1/skills"):
        assert (await http.get(path)).json()["error"]["code"] in ("not_found", "model_not_found")


async def test_errors_have_anthropics_types(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    assert "not_found_error" in await refusal(http, 404, model="claude")
    engine.refusal = RequestFailed("the worker failed")
    assert "api_error" in await refusal(http, 500)
    engine.connected = False
    assert "overloaded_error" in await refusal(http, 503)
    wrong = await http.get(URL)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"]["type"] == "invalid_request_error"
    assert wrong.json()["type"] == "error"
    large = await http.post(URL, content=b" " * 300_000)
    assert large.json()["error"]["type"] == "request_too_large"


async def test_a_stream_that_fails_ends_with_an_error(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    def script(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        yield [SequenceDelta(index=0, text="Once", token_ids=[65])]
        yield RequestFailed("the worker failed")

    engine.script = script
    response = await http.post(URL, json=body(stream=True))
    name, data = response.text[:-2].split("\n\n")[-1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"] == {
        "type": "api_error",
        "message": "the worker failed",
    }
