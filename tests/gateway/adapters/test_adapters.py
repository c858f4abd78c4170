"""Adapters by name: as a request's model, in lists, loaded and unloaded, for whom."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock.protocol.common import AdapterFile, NamedAdapter
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.app import create_app
from tests.adapter_folders import random_factors, write_gguf, write_peft
from tests.gateway.fake_engine import MODEL, FakeEngineClient, welcome
from tests.gateway.keyring import ADMIN, ALICE, BOB, OTHER, bearer, key, write

SQL = AdapterFile("a" * 64, "/adapters/sql")
SHAPES = {"model.layers.0.self_attn.q_proj": (16, 8)}
SUCCESS = "Success: LoRA adapter '{}' {} successfully."


@pytest.fixture
def engine() -> FakeEngineClient:
    engine = FakeEngineClient()
    engine.welcome = welcome(max_lora_rank=8)
    engine.adapters.learn([NamedAdapter("sql", SQL, 0, 4, "some/model")])
    return engine


@asynccontextmanager
async def gateway(
    engine: FakeEngineClient, folders: AdapterFolders | None = None, **config: Any
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(engine, GatewayConfig(**config), adapters=folders)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.fixture
async def http(engine: FakeEngineClient, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that may read adapters below tmp_path/allowed."""
    (tmp_path / "allowed").mkdir()
    folders = AdapterFolders(str(tmp_path / "allowed"), str(tmp_path / "cache"))
    async with gateway(engine, folders) as client:
        yield client


def peft(folder: Path, *, seed: int = 1, rank: int = 4) -> Path:
    return write_peft(folder, random_factors(SHAPES, rank, seed))


async def load(http: httpx.AsyncClient, name: str, path: str | Path, **more: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path), **more}
    return await http.post("/v1/load_lora_adapter", json=body)


async def unload(http: httpx.AsyncClient, name: str) -> httpx.Response:
    return await http.post("/v1/unload_lora_adapter", json={"lora_name": name})


async def complete(http: httpx.AsyncClient, model: str | None, **more: Any) -> httpx.Response:
    body = {"prompt": "Hi", "model": model, "max_tokens": 4}
    return await http.post("/v1/completions", json=body, **more)


# ---- as a request's model


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
async def test_an_adapters_name_is_a_model(
    http: httpx.AsyncClient, engine: FakeEngineClient, path: str, body: dict, stream: bool
) -> None:
    answer = await http.post(path, json={**body, "model": "sql", "stream": stream})
    assert answer.status_code == 200, answer.text
    assert '"model":"sql"' in answer.text
    assert engine.terms[-1].adapter == SQL


async def test_the_model_itself_is_served_without_an_adapter(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    for name in (None, MODEL):
        assert (await complete(http, name)).status_code == 200
    assert [terms.adapter for terms in engine.terms] == [None, None]


async def test_fingerprints_tell_adapters_apart(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    before = [(await complete(http, name)).json()["system_fingerprint"] for name in (MODEL, "sql")]
    engine.adapters.learn([NamedAdapter("sql", AdapterFile("b" * 64, "/x"), 1)])
    after = [(await complete(http, name)).json()["system_fingerprint"] for name in (MODEL, "sql")]
    assert before[0] == after[0]
    assert len({*before, *after}) == 3


async def test_a_name_that_nobody_has_is_not_found(http: httpx.AsyncClient) -> None:
    answer = await complete(http, "law")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_text_is_tokenised_under_an_adapters_name_too(http: httpx.AsyncClient) -> None:
    answer = await http.post("/tokenize", json={"prompt": "Hi", "model": "sql"})
    assert answer.status_code == 200


# ---- in lists


async def test_adapters_are_listed_with_their_parent(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in listed] == [
        (MODEL, MODEL, None),
        ("sql", SQL.digest, "some/model"),
    ]
    one = (await http.get("/v1/models/sql")).json()
    assert (one["id"], one["parent"]) == ("sql", "some/model")
    assert (await http.get("/v1/models/law")).status_code == 404


# ---- loaded and unloaded


async def test_an_adapter_is_loaded_replaced_and_unloaded(
    http: httpx.AsyncClient, engine: FakeEngineClient, tmp_path: Path
) -> None:
    peft(tmp_path / "allowed" / "law")
    loaded = await load(http, "law", "law")
    assert (loaded.status_code, loaded.text) == (200, SUCCESS.format("law", "added"))
    first = engine.adapters.find("law")
    assert first is not None
    assert first.file is not None
    assert (first.rank, first.parent) == (4, "")
    assert Path(first.file.path).parent == tmp_path / "cache" / "adapters"

    again = await load(http, "law", tmp_path / "allowed" / "law")
    assert again.status_code == 400
    assert "load_inplace" in again.json()["error"]["message"]

    peft(tmp_path / "allowed" / "law", seed=2)
    assert (await load(http, "law", "law", load_inplace=True)).status_code == 200
    second = engine.adapters.find("law")
    assert second is not None
    assert second.file is not None
    assert second.file.digest != first.file.digest
    assert second.stamp > first.stamp
    assert (await complete(http, "law")).status_code == 200
    assert engine.terms[-1].adapter == second.file
    assert Path(first.file.path, "adapter_config.json").exists(), "streams go on with the first"

    gone = await unload(http, "law")
    assert (gone.status_code, gone.text) == (200, SUCCESS.format("law", "removed"))
    assert (await complete(http, "law")).status_code == 404
    assert (await unload(http, "law")).status_code == 404


async def test_a_gguf_file_is_an_adapter_too(
    http: httpx.AsyncClient, engine: FakeEngineClient, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "allowed" / "law.gguf", random_factors({"blk.0.attn_q": (16, 8)}, 4, 1))
    assert (await load(http, "law", "law.gguf")).status_code == 200
    found = engine.adapters.find("law")
    assert found is not None
    assert found.file is not None
    assert found.file.path.endswith(".gguf")


async def test_what_lies_elsewhere_is_not_read(http: httpx.AsyncClient, tmp_path: Path) -> None:
    peft(tmp_path / "secret")
    allowed = tmp_path / "allowed"
    (allowed / "link").symlink_to(tmp_path / "secret")
    peft(allowed / "half")
    (allowed / "half" / "adapter_model.safetensors").unlink()
    (allowed / "half" / "adapter_model.safetensors").symlink_to(
        tmp_path / "secret" / "adapter_model.safetensors"
    )
    answers = [
        await load(http, "law", path)
        for path in (tmp_path / "secret", "../secret", "link", "half", "nowhere", "/etc/passwd")
    ]
    assert [answer.status_code for answer in answers] == [400] * 6
    told = {answer.json()["error"]["message"].split(":")[1] for answer in answers}
    assert len(told) == 1, "what is there can't be told from what isn't"


async def test_a_damaged_or_too_large_adapter_is_named(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    allowed = tmp_path / "allowed"
    peft(allowed / "wide", rank=9)
    (peft(allowed / "cut") / "adapter_model.safetensors").write_bytes(b"\0" * 20)
    config = peft(allowed / "dora") / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))
    for name, word in (("wide", "--max-lora-rank"), ("cut", "cut"), ("dora", "dora")):
        answer = await load(http, name, name)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["code"] == "invalid_adapter"
        assert word in error["message"]
        assert str(tmp_path) not in error["message"]
    left = list((tmp_path / "cache" / "adapters").glob("[!.]*"))
    assert not left, "what can't be served is not kept"


@pytest.mark.parametrize("name", ["", " x", "a\nb", "a" * 257, MODEL])
async def test_not_every_name_is_one(http: httpx.AsyncClient, tmp_path: Path, name: str) -> None:
    peft(tmp_path / "allowed" / "law")
    answer = await load(http, name, "law")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "lora_name"


async def test_nothing_is_loaded_unless_a_folder_is_named(engine: FakeEngineClient) -> None:
    async with gateway(engine) as http:
        for answer in (await load(http, "law", "/x"), await unload(http, "sql")):
            assert answer.status_code == 403
            assert "--lora-allowed-folder" in answer.json()["error"]["message"]


async def test_a_server_without_adapters_says_so(engine: FakeEngineClient, tmp_path: Path) -> None:
    engine.welcome = welcome()
    async with gateway(engine, AdapterFolders(str(tmp_path))) as http:
        answer = await load(http, "law", "law")
        assert answer.status_code == 404
        assert "--enable-lora" in answer.json()["error"]["message"]


async def test_no_path_is_no_adapter_and_gives_none_away(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    for path in ("", ".", "loop"):
        (tmp_path / "allowed" / "loop").unlink(missing_ok=True)
        (tmp_path / "allowed" / "loop").symlink_to(tmp_path / "allowed" / "loop")
        answer = await load(http, "law", path)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "lora_path"
        assert str(tmp_path) not in answer.text


async def test_a_cache_folder_that_takes_no_copy_is_said(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    peft(tmp_path / "allowed" / "law")
    (tmp_path / "cache").touch()
    answer = await load(http, "law", "law")
    assert answer.status_code == 500
    assert "can't be copied" in answer.json()["error"]["message"]
    assert str(tmp_path) not in answer.text


async def test_names_have_a_bound_that_is_said(
    http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_gateway.adapters.loading.MAX_ADAPTER_NAMES", 1)
    peft(tmp_path / "allowed" / "law")
    answer = await load(http, "law", "law")
    assert answer.status_code == 400
    assert "unload one" in answer.json()["error"]["message"]
    assert (await load(http, "sql", "law", load_inplace=True)).status_code == 200


# ---- for whom


async def test_keys_say_who_may_use_and_load_which(
    engine: FakeEngineClient, tmp_path: Path
) -> None:
    keys = write(
        tmp_path / "keys.json",
        key(ALICE, models=["sql"]),
        key(BOB),
        key(OTHER, models=[MODEL]),
        key(ADMIN, admin=True),
    )
    peft(tmp_path / "law")
    async with gateway(engine, AdapterFolders(str(tmp_path), str(tmp_path)), api_keys=keys) as http:

        async def statuses(secret: str) -> list[int]:
            answers = [
                await complete(http, name, headers=bearer(secret)) for name in ("sql", MODEL)
            ]
            return [answer.status_code for answer in answers]

        assert await statuses(ALICE) == [200, 403]
        assert await statuses(BOB) == [200, 200]
        assert await statuses(OTHER) == [403, 200]
        listed = await http.get("/v1/models", headers=bearer(ALICE))
        assert [card["id"] for card in listed.json()["data"]] == ["sql"]
        http.headers.update(bearer(BOB))
        assert (await load(http, "law", "law")).status_code == 403
        assert (await unload(http, "sql")).status_code == 403
        http.headers.update(bearer(ADMIN))
        assert (await load(http, "law", "law")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
async def test_a_body_of_names_is_short(http: httpx.AsyncClient, path: str) -> None:
    """Up to max_body_bytes, decoding and naming it took a turn of 50 ms."""
    reply = await http.post(path, json={"lora_name": "a" * 2**20, "lora_path": "/a"})
    assert reply.status_code == 413
    assert "1048576" in reply.json()["error"]["message"]


async def test_the_parent_is_the_served_model_whatever_an_adapters_file_says(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.adapters.learn([NamedAdapter("other", AdapterFile("c" * 64, "/y"), 1)])
    cards = {card["id"]: card for card in (await http.get("/v1/models")).json()["data"]}
    assert cards["other"]["parent"] == MODEL
    assert cards["other"]["parent"] in cards
