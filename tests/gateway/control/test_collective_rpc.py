"""POST /collective_rpc: shapes, errors, keys."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from penstock.config.settings import GatewayConfig
from penstock.errors import DeadlineExceeded, EngineUnavailable, InvalidRequest, RequestFailed
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.keyring import ALICE, bearer, key, write


async def test_results_are_those_of_all_ranks(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.answers = [{"rank": 0, "seen": [1.5, None]}, np.array([[1, 2]], "int16")]
    body = {"method": "memory", "args": [1], "kwargs": {"deep": True}, "timeout": 5}
    reply = await http.post("/collective_rpc", json=body)
    assert reply.status_code == 200, reply.text
    numbers = base64.b64encode(np.array([[1, 2]], "<i2").tobytes()).decode()
    array = {"dtype": "int16", "shape": [1, 2], "base64": numbers}
    assert reply.json() == {"results": [{"rank": 0, "seen": [1.5, None]}, array]}
    assert engine.calls == [("memory", [1], {"deep": True}, 5.0)]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("no worker extension has a method 'memory'"), 400),
        (RequestFailed("rank 1: memory: ValueError: no"), 500),
        (EngineUnavailable("the worker is gone"), 503),
        (DeadlineExceeded("it could not begin within 5 s"), 408),
    ],
)
async def test_errors(
    http: httpx.AsyncClient, engine: FakeEngineClient, error: Exception, status: int
) -> None:
    engine.answers = error
    reply = await http.post("/collective_rpc", json={"method": "memory"})
    assert (reply.status_code, reply.json()["error"]["message"]) == (status, str(error))


async def test_a_result_that_json_has_no_form_for(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.answers = [{"shape": 1}, {(1, 2): "a pair"}]
    reply = await http.post("/collective_rpc", json={"method": "memory"})
    assert reply.status_code == 500
    said = reply.json()["error"]["message"]
    assert said.startswith("memory: its result can't be written as JSON: Only dicts with str-like")


@pytest.mark.parametrize("body", [{}, {"method": 3}, {"method": "m", "code": "x"}])
async def test_what_is_no_call(
    http: httpx.AsyncClient, engine: FakeEngineClient, body: dict[str, Any]
) -> None:
    assert (await http.post("/collective_rpc", json=body)).status_code == 400
    assert engine.calls == []


async def test_calls_to_workers_want_an_admins_key(tmp_path: Path) -> None:
    engine = FakeEngineClient()
    config = GatewayConfig(api_keys=write(tmp_path / "keys.json", key(ALICE)))
    transport = httpx.ASGITransport(create_app(engine, config))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        body = {"method": "memory"}
        assert (await http.post("/collective_rpc", json=body)).status_code == 401
        asked = await http.post("/collective_rpc", json=body, headers=bearer(ALICE))
        assert asked.status_code == 403
    assert engine.calls == []
