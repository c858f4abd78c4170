"""The access log: a line for each request that was answered, and no others."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.http import access_log
from tests.gateway.fake_engine import MODEL, FakeEngineClient
from tests.gateway.keyring import ALICE, bearer, key, write

CHAT = "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "Hi"}]}

Gateway = Callable[..., httpx.AsyncClient]


@pytest.fixture
def gateway(engine: FakeEngineClient) -> Iterator[Gateway]:
    def make(form: str, **settings: Any) -> httpx.AsyncClient:
        access_log.setup("gateway 0", form)
        app = create_app(engine, GatewayConfig(access_log=form, **settings))  # type: ignore[arg-type]
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g")

    yield make
    logger = logging.getLogger(access_log.LOGGER)
    logger.handlers, logger.propagate = [], True


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


async def test_a_line_says_who_asked_for_what_and_how_it_went(gateway, capsys, tmp_path: Path):
    keys = write(tmp_path / "keys.json", key(ALICE))
    async with gateway("json", api_keys=keys) as http:
        headers = {**bearer(ALICE), "x-request-id": "mine"}
        reply = await http.post(CHAT, json=QUESTION, headers=headers)
        await http.post(CHAT, json={**QUESTION, "temperature": -1}, headers=bearer(ALICE))
        await http.post(CHAT, json=QUESTION)
        await http.get("/nowhere", headers=bearer(ALICE))
    good, bad, stranger, lost = lines(capsys)
    usage = reply.json()["usage"]
    assert (good["method"], good["path"], good["status"]) == ("POST", CHAT, 200)
    assert (good["key"], good["model"], good["request"]) == ("alice", MODEL, "mine")
    assert good["prompt_tokens"] == usage["prompt_tokens"]
    assert good["output_tokens"] == usage["completion_tokens"]
    assert 0 <= good["first_token_seconds"] <= good["seconds"]
    assert (bad["status"], bad["key"], "prompt_tokens" in bad) == (400, "alice", False)
    assert (stranger["status"], "key" in stranger) == (401, False)
    assert (lost["status"], lost["path"]) == (404, "/nowhere")
    assert all(ALICE not in json.dumps(line) for line in (good, bad, stranger, lost))


async def test_who_is_refused_what_admins_may_is_named(gateway, capsys, tmp_path: Path):
    async with gateway("json", api_keys=write(tmp_path / "keys.json", key(ALICE))) as http:
        assert (await http.get("/live", headers=bearer(ALICE))).status_code == 403
    (refused,) = lines(capsys)
    assert (refused["status"], refused["key"]) == (403, "alice")


async def test_health_checks_and_prompts_are_left_out(gateway, capsys, engine):
    async with gateway("json") as http:
        engine.connected = False
        assert (await http.get("/health/ready")).status_code == 503
        assert (await http.get("/ping")).status_code == 503
        engine.connected = True
        for path in ("/health", "/health/live", "/metrics", "/v1/models"):
            assert (await http.get(path)).status_code == 200
        await http.post(CHAT, json={"messages": [{"role": "user", "content": "a secret"}]})
    (line,) = lines(capsys)
    assert "secret" not in json.dumps(line)


async def test_as_text_it_is_a_line_like_the_logs(gateway, capsys):
    async with gateway("text") as http:
        await http.post(CHAT, json=QUESTION)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r'time=\S+Z level=info process="gateway 0" event=request method=POST', line)
    assert re.search(rf" status=200 model={MODEL} seconds=\S+ .*output_tokens=\d+", line)


async def test_by_default_there_is_none(engine: FakeEngineClient, capsys):
    app = create_app(engine, GatewayConfig())  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g") as http:
        await http.post(CHAT, json=QUESTION)
    assert capsys.readouterr().err == ""


async def test_a_scanners_long_path_is_cut(gateway, capsys):
    async with gateway("json") as http:
        await http.get("/" + "x" * 5000)
    (line,) = lines(capsys)
    assert (line["status"], len(line["path"])) == (404, access_log.MAX_PATH)
