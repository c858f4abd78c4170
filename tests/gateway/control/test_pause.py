"""POST /pause and /resume, GET /is_paused: shapes, errors, keys."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.keyring import ALICE, bearer, key, write


async def test_pause_and_resume(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    assert (await http.get("/is_paused")).json() == {"is_paused": False}
    assert (await http.post("/pause")).json() == {"status": "paused"}
    assert (await http.get("/is_paused")).json() == {"is_paused": True}
    assert (await http.post("/resume")).json() == {"status": "resumed"}
    assert (await http.post("/pause?mode=keep&clear_cache=true")).status_code == 200
    assert (await http.get("/is_paused")).json() == {"is_paused": True}
    assert engine.pauses == [(True, True), (False, False), (True, False)]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("mode=wait", 'mode is "wait"; allowed: abort, keep'),
        ("mod=keep", 'unknown parameter "mod"; allowed: mode, clear_cache, model'),
    ],
)
async def test_what_is_wrong(
    http: httpx.AsyncClient, engine: FakeEngineClient, query: str, says: str
) -> None:
    reply = await http.post(f"/pause?{query}")
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]
    assert engine.pauses == []
    engine.connected = False
    assert (await http.post("/pause")).status_code == 503


async def test_a_pause_wants_an_admins_key(tmp_path: Path) -> None:
    engine = FakeEngineClient()
    config = GatewayConfig(api_keys=write(tmp_path / "keys.json", key(ALICE)))
    transport = httpx.ASGITransport(create_app(engine, config))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for method, path in (("POST", "/pause"), ("POST", "/resume"), ("GET", "/is_paused")):
            assert (await http.request(method, path)).status_code == 401
            asked = await http.request(method, path, headers=bearer(ALICE))
            assert asked.status_code == 403
    assert engine.pauses == []
