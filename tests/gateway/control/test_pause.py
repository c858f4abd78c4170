"""POST /pause and /resume, GET /is_paused: shapes, errors, keys."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.fake_engine import FakeEngineClient


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
        ("mod=keep", 'there is no parameter "mod"; allowed: mode, clear_cache, model'),
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
