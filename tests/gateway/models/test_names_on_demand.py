"""Names and keys where the supervisor starts models: what may not be asked for starts nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from penstock.config.settings import GatewayConfig
from penstock.protocol.common import AdapterFile, NamedAdapter
from penstock.protocol.to_supervisor import ToSupervisor, Unload, Unwant, Want
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.app import create_app
from penstock_gateway.models.backend import ModelBackend
from penstock_gateway.models.residence import Residence
from tests.gateway.fake_engine import FakeEngineClient, say, status, welcome
from tests.gateway.keyring import ALICE, bearer, key, write

CONFIG = GatewayConfig()


@dataclass
class Demanded:
    """Models on demand, none of which is there, and what the supervisor was told."""

    names: tuple[str, ...]
    adapters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    known: bool = True
    """Whether they have been there."""
    told: list[ToSupervisor] = field(default_factory=list)
    clients: list[FakeEngineClient] = field(default_factory=list)

    def app(
        self, *, peer: tuple[str, int] = ("127.0.0.1", 123), **config: Any
    ) -> httpx.AsyncClient:
        backends = [self._backend(name) for name in self.names]
        app = create_app(backends, msgspec.structs.replace(CONFIG, **config))
        transport = httpx.ASGITransport(app, client=peer)
        return httpx.AsyncClient(transport=transport, base_url="http://gateway")

    def _backend(self, name: str) -> ModelBackend:
        client = FakeEngineClient(say("Hello"))
        client.welcome = welcome(model=name) if self.known else None
        client.status = status()
        client.connected = False
        self.clients.append(client)
        backend = ModelBackend(
            client,
            CONFIG,
            (name,),
            self.adapters.get(name, ()),  # type: ignore[arg-type]
            AdapterFolders("/adapters"),
        )
        backend.residence = Residence(
            name, pinned=False, is_up=lambda: False, tell=self._tell, patience=0.01
        )
        return backend

    def _tell(self, message: ToSupervisor) -> bool:
        self.told.append(message)
        return True


def body(model: str) -> dict[str, Any]:
    return {"model": model, "prompt": "Who?", "max_tokens": 1}


async def test_an_unknown_name_does_not_start_the_only_model() -> None:
    demanded = Demanded(("red",))
    async with demanded.app() as client:
        reply = await client.post("/v1/completions", json=body("green"))
    assert reply.status_code == 404
    assert '\\"red\\"' in reply.text
    assert demanded.told == []


@pytest.mark.parametrize("asked", ["red", "rhymes"])
async def test_a_key_starts_nothing_that_it_may_not_use(tmp_path: Path, asked: str) -> None:
    demanded = Demanded(("red", "blue"))
    keys = write(tmp_path / "keys.json", key(ALICE, models=["blue"]))
    async with demanded.app(api_keys=keys) as client:
        rhymes = NamedAdapter("rhymes", AdapterFile("0" * 64, "/adapters/rhymes"), 1, 8)
        demanded.clients[0].name_adapters([rhymes])
        reply = await client.post("/v1/completions", json=body(asked), headers=bearer(ALICE))
    assert reply.status_code == 403
    assert demanded.told == []


async def test_a_key_unloads_nothing_that_it_may_not_use(tmp_path: Path) -> None:
    demanded = Demanded(("red", "blue"))
    keys = write(tmp_path / "keys.json", key(ALICE, models=["blue"], unload_models=True))
    async with demanded.app(api_keys=keys) as client:
        for name, code in (("red", 403), ("blue", 200)):
            asked = {"model": name, "keep_alive": 0, "stream": False}
            reply = await client.post("/api/generate", json=asked, headers=bearer(ALICE))
            assert reply.status_code == code, reply.text
    assert demanded.told == [Unload("blue")]


async def test_a_model_is_unloaded_and_found_by_its_name_with_a_tag() -> None:
    demanded = Demanded(("red", "blue"))
    async with demanded.app() as client:
        asked = {"model": "blue:latest", "keep_alive": 0, "stream": False}
        reply = await client.post("/api/generate", json=asked)
        assert reply.status_code == 200, reply.text
        assert (await client.post("/api/pull", json={"model": "red:latest"})).status_code == 200
    assert demanded.told == [Unload("blue")], "to ask for a model starts none"


UNLOADS = {"model": "blue", "keep_alive": 0, "stream": False}


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
@pytest.mark.parametrize("right", [None, "unload_models", "admin"])
async def test_unloading_needs_a_right(tmp_path: Path, path: str, right: str | None) -> None:
    demanded = Demanded(("red", "blue"))
    rights = {} if right is None else {right: True}
    keys = write(tmp_path / "keys.json", key(ALICE, **rights))
    async with demanded.app(api_keys=keys) as client:
        for streams in (False, True):
            asked = {**UNLOADS, "stream": streams}
            reply = await client.post(path, json=asked, headers=bearer(ALICE))
            assert reply.status_code == (403 if right is None else 200), reply.text
            assert right is not None or "unload_models" in reply.text
        loads = {**UNLOADS, "keep_alive": "5m"}
        await client.post(path, json=loads, headers=bearer(ALICE))
    unloaded = [each for each in demanded.told if isinstance(each, Unload)]
    assert unloaded == ([] if right is None else [Unload("blue")] * 2)
    assert Want("blue") in demanded.told, "to load one, its name is enough"


async def test_without_keys_a_model_is_unloaded_from_this_machine() -> None:
    demanded = Demanded(("red", "blue"))
    extension = {"origin": "chrome-extension://abc"}
    async with demanded.app(peer=("192.0.2.7", 1)) as client:
        reply = await client.post("/api/generate", json=UNLOADS)
        assert (reply.status_code, "--allow-remote-control" in reply.text) == (403, True)
    async with demanded.app(peer=("192.0.2.7", 1), allow_remote_control=True) as client:
        assert (await client.post("/api/generate", json=UNLOADS)).status_code == 200
    async with demanded.app() as client:
        reply = await client.post("/api/generate", json=UNLOADS, headers=extension)
        assert (reply.status_code, "--allowed-origins" in reply.text) == (403, True)
    async with demanded.app(allowed_origins=extension["origin"]) as client:
        reply = await client.post("/api/generate", json=UNLOADS, headers=extension)
        assert reply.status_code == 200
    assert demanded.told == [Unload("blue")] * 2


async def test_an_adapter_of_a_model_that_was_never_loaded_has_it_started() -> None:
    demanded = Demanded(("red", "blue"), adapters={"blue": ("rhymes",)}, known=False)
    async with demanded.app() as client:
        reply = await client.post("/v1/completions", json=body("rhymes"))
        assert reply.status_code == 503
        reply = await client.post("/v1/completions", json=body("prose"))
        assert reply.status_code == 404
    assert demanded.told == [Want("blue"), Unwant("blue")]


async def test_an_adapter_is_unloaded_while_its_model_is_away() -> None:
    demanded = Demanded(("red", "blue"))
    async with demanded.app() as client:
        rhymes = NamedAdapter("rhymes", AdapterFile("0" * 64, "/adapters/rhymes"), 1, 8)
        demanded.clients[1].welcome = welcome(model="blue", max_lora_rank=8)
        demanded.clients[1].name_adapters([rhymes])
        told = {"lora_name": "rhymes"}
        assert (await client.post("/v1/unload_lora_adapter", json=told)).status_code == 200
        # An engine core that is there again is told.
        (gone,) = demanded.clients[1].adapters.changes()
        assert (gone.name, gone.file) == ("rhymes", None)
        assert (await client.post("/v1/completions", json=body("rhymes"))).status_code == 404
    assert demanded.told == []


async def test_names_that_the_operator_gave_come_before_those_that_engine_cores_tell(
    tmp_path: Path,
) -> None:
    clients = {name: FakeEngineClient(say(f"I am {name}")) for name in ("red", "blue")}
    for client in clients.values():
        client.welcome = welcome(model="blue")
        client.status = status()
    backends = [
        ModelBackend(client, CONFIG, (name,))  # type: ignore[arg-type]
        for name, client in clients.items()
    ]
    keys = write(tmp_path / "keys.json", key(ALICE, models=["red"]))
    config = msgspec.structs.replace(CONFIG, api_keys=keys)
    transport = httpx.ASGITransport(create_app(backends, config))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        headers = bearer(ALICE)
        reply = await client.post("/v1/completions", json=body("red"), headers=headers)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == "red"
        assert len(clients["red"].submitted) == 1
        reply = await client.post("/v1/completions", json=body("blue"), headers=headers)
        assert reply.status_code == 403
        listed = (await client.get("/v1/models", headers=headers)).json()["data"]
        assert "red" in [card["id"] for card in listed]
