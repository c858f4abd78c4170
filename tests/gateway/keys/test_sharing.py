"""Whose identical requests may be computed once, and who is told that theirs were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import FakeEngineClient, FakeGeneration
from tests.gateway.keyring import ALICE, BOB, OTHER, bearer, key, write

BODY = {"prompt": "Hi", "seed": 1}


@pytest.mark.parametrize("everybody", [False, True])
async def test_a_key_says_it_or_else_the_server(tmp_path: Path, everybody: bool) -> None:
    keys = write(
        tmp_path / "keys.json",
        key(ALICE, share_identical_requests=True),
        key(BOB),
        key(OTHER, share_identical_requests=False),
    )
    engine = FakeEngineClient()
    app = create_app(engine, GatewayConfig(api_keys=keys, share_identical_requests=everybody))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for secret in (ALICE, BOB, OTHER):
            for path, body in (("/v1/completions", BODY), ("/v1/messages", MESSAGE)):
                reply = await http.post(path, json=body, headers=bearer(secret))
                assert reply.status_code == 200, reply.text
                assert "x-penstock-shared" not in reply.headers
    shared = [terms.shared for terms in engine.terms]
    assert shared == [True, True, everybody, everybody, False, False]


MESSAGE = {
    "model": "org/tiny-model",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 3,
}


class Sharing(FakeEngineClient):
    """Answers every second request along with an earlier one."""

    def begin(self, generation: FakeGeneration, n: int, *, timed: bool) -> None:
        generation.placement.accepted(shared=len(self.submitted) % 2 == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("timeline", ["0", "1"])
async def test_the_reply_says_for_how_many_prompts(stream: bool, timeline: str) -> None:
    transport = httpx.ASGITransport(app=create_app(Sharing(), GatewayConfig()))
    headers = {"x-penstock-timeline": timeline}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:

        async def told(**body: Any) -> str | None:
            reply = await http.post(
                "/v1/completions", json={**BODY, "stream": stream, **body}, headers=headers
            )
            assert reply.status_code == 200, reply.text
            value: str | None = reply.headers.get("x-penstock-shared")
            return value

        assert [await told(), await told()] == [None, "1"]
        assert await told(prompt=["a", "b", "c", "d"]) == "2"
