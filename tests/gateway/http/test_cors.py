"""Web pages of other origins: none unless named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.keyring import ALICE, bearer, key, write

PAGE = "https://page.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def client(**settings: Any) -> httpx.AsyncClient:
    app = create_app(FakeEngineClient(), GatewayConfig(**settings))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


async def test_by_default_no_origin_is_told_that_it_may() -> None:
    async with client() as http:
        for reply in (
            await http.get("/version", headers={"origin": PAGE}),
            await http.options("/v1/completions", headers=PREFLIGHT),
        ):
            assert not [name for name in reply.headers if name.startswith("access-control")]
    assert reply.status_code == 403


@pytest.mark.parametrize("origins", [PAGE, f"https://a.example, {PAGE}", f'["{PAGE}"]', '["*"]'])
async def test_named_origins_may(tmp_path: Path, origins: str) -> None:
    keys = write(tmp_path / "keys.json", key(ALICE))
    async with client(allowed_origins=origins, api_keys=keys) as http:
        # A browser sends no key with its question whether it may send one.
        preflight = await http.options("/v1/completions", headers=PREFLIGHT)
        assert preflight.status_code == 200
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        for headers, status in ((bearer(ALICE), 200), ({}, 401)):
            reply = await http.get("/version", headers={"origin": PAGE, **headers})
            assert reply.status_code == status
            # Else the page could not read why it was refused.
            assert reply.headers["access-control-allow-origin"] in ("*", PAGE)
            shown = reply.headers["access-control-expose-headers"]
            assert {"x-ratelimit-remaining-tokens", "request-id"} <= set(shown.split(", "))


async def test_other_origins_may_not() -> None:
    async with client(allowed_origins=PAGE) as http:
        reply = await http.get("/version", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in reply.headers
        asked = PREFLIGHT | {"origin": "https://evil.example"}
        assert (await http.options("/v1/completions", headers=asked)).status_code == 400


async def test_a_preflight_leads_to_no_endpoint_and_other_options_need_a_key(
    tmp_path: Path,
) -> None:
    keys = write(tmp_path / "keys.json", key(ALICE))
    async with client(allowed_origins='["*"]', api_keys=keys) as http:
        assert (await http.options("/v1/models", headers=PREFLIGHT)).text == "OK"
        assert (await http.options("/v1/models", headers={"origin": PAGE})).status_code == 401


def test_a_list_that_is_none_is_refused() -> None:
    with pytest.raises(StartupError, match="--allowed-origins"):
        client(allowed_origins='["a"')


APPS = (
    "app://obsidian.md",
    "tauri://localhost",
    "vscode-webview://0a1b2c",
    "capacitor://localhost",
    "chrome-extension://abcdef",
    "http://tauri.localhost",
    "https://tauri.localhost",
)


@pytest.mark.parametrize("settings", [{}, {"allowed_origins": PAGE}])
@pytest.mark.parametrize("origin", APPS)
async def test_programs_that_are_let_in_may_read_the_answers(
    origin: str, settings: dict[str, Any]
) -> None:
    async with client(**settings) as http:
        preflight = await http.options("/v1/completions", headers=PREFLIGHT | {"origin": origin})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == origin
        body = {"prompt": "Hi"}
        headers = {"origin": origin, "host": "localhost"}
        reply = await http.post("/v1/completions", json=body, headers=headers)
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == origin


async def test_who_is_let_in_may_reach_a_private_address() -> None:
    """As Chromium asks before a program's or a public page's request to one."""
    asked = PREFLIGHT | {"access-control-request-private-network": "true"}
    async with client(allowed_origins=PAGE) as http:
        for origin in (PAGE, "app://obsidian.md"):
            reply = await http.options("/v1/completions", headers=asked | {"origin": origin})
            assert reply.status_code == 200
            assert reply.headers["access-control-allow-private-network"] == "true"
        other = asked | {"origin": "https://evil.example"}
        assert (await http.options("/v1/completions", headers=other)).status_code == 400
    async with client() as http:
        other = {"origin": "https://evil.example", "host": "localhost"}
        reply = await http.options("/v1/completions", headers=asked | other)
        assert reply.status_code == 403


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:3000", "https://tauri.localhost.evil.example", "null", "file://", "httpsx"],
)
async def test_pages_are_no_programs(origin: str) -> None:
    async with client() as http:
        headers = {"origin": origin, "host": "localhost"}
        reply = await http.post("/v1/completions", json={"prompt": "Hi"}, headers=headers)
        assert reply.status_code == 403 or origin == "httpsx"
        assert "access-control-allow-origin" not in reply.headers


async def test_the_log_says_once_how_to_let_someone_in(caplog: pytest.LogCaptureFixture) -> None:
    async with client() as http:
        for name in ("box.lan", "box.tail1.ts.net"):
            for _ in range(3):
                headers = {"host": name}
                assert (await http.get("/version", headers=headers)).status_code in (200, 403)
                reply = await http.post("/v1/completions", json={"prompt": "a"}, headers=headers)
                assert reply.status_code == 403
                assert "--allowed-hosts" in reply.json()["error"]["message"]
            said = [each for each in caplog.records if name in str(each.__dict__)]
            assert len(said) == 1
