"""POST /update_weights_from_disk: what may be read, errors, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.keyring import ALICE, bearer, key, write

PATH = "/update_weights_from_disk"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    allowed = tmp_path / "allowed"
    for name in ("allowed/step-1", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (allowed / "out").symlink_to(tmp_path / "elsewhere")
    return allowed


async def asked(
    engine: FakeEngineClient, config: GatewayConfig, body: Any, **headers: str
) -> httpx.Response:
    transport = httpx.ASGITransport(create_app(engine, config))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        return await http.post(PATH, json=body, headers=headers)


async def test_what_the_engine_cores_are_told(folder: Path) -> None:
    engine, config = FakeEngineClient(), GatewayConfig(weights_allowed_folder=str(folder))
    reply = await asked(engine, config, {"model_path": "step-1", "flush_cache": False})
    assert reply.json() == {"success": True, "message": "The weights of step-1 are loaded."}
    whole = {"model_path": str(folder / "step-1"), "abort_all_requests": True, "timeout": 5.0}
    assert (await asked(engine, config, whole)).status_code == 200
    assert engine.weights == [
        (folder / "step-1", "wait", None),
        (folder / "step-1", "abort", 5.0),
    ]


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("../elsewhere", 403, "is outside the folder that --weights-allowed-folder allows"),
        ("out", 403, "is outside the folder that --weights-allowed-folder allows"),
        ("/etc", 403, "is outside the folder that --weights-allowed-folder allows"),
        ("step-2", 400, 'there is no "step-2"'),
        ("a\0b", 400, "there is no"),
    ],
)
async def test_only_what_lies_in_the_folder(
    folder: Path, path: str, status: int, says: str
) -> None:
    engine, config = FakeEngineClient(), GatewayConfig(weights_allowed_folder=str(folder))
    reply = await asked(engine, config, {"model_path": path})
    assert reply.status_code == status
    assert says in reply.json()["error"]["message"]
    assert engine.weights == []


async def test_without_a_folder_nothing_is_replaced(folder: Path) -> None:
    engine = FakeEngineClient()
    reply = await asked(engine, GatewayConfig(), {"model_path": str(folder / "step-1")})
    assert reply.status_code == 403
    assert "--weights-allowed-folder" in reply.json()["error"]["message"]
    assert engine.weights == []


async def test_what_is_misspelt_aborts_nobody(folder: Path) -> None:
    engine, config = FakeEngineClient(), GatewayConfig(weights_allowed_folder=str(folder))
    for wrong in ({"mode": "keep"}, {"moed": "wait"}):
        reply = await asked(engine, config, {"model_path": "step-1", **wrong})
        assert reply.status_code == 400
    assert engine.weights == []


async def test_new_weights_want_an_admins_key(folder: Path, tmp_path: Path) -> None:
    engine = FakeEngineClient()
    keys = write(tmp_path / "keys.json", key(ALICE))
    config = GatewayConfig(api_keys=keys, weights_allowed_folder=str(folder))
    body = {"model_path": "step-1"}
    assert (await asked(engine, config, body)).status_code == 401
    assert (await asked(engine, config, body, **bearer(ALICE))).status_code == 403
    assert engine.weights == []
