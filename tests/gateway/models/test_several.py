"""Several models in one gateway: every request finds its own, and no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from penstock.config.settings import GatewayConfig
from penstock.errors import InvalidRequest, StartupError
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.common import AdapterFile, NamedAdapter
from penstock_gateway.app import create_app
from penstock_gateway.models.backend import ModelBackend, ModelRegistry
from penstock_gateway.models.reach import named_endpoints
from testing.metrics_page import Page
from tests.gateway.fake_engine import FakeEngineClient, say, status, welcome
from tests.gateway.keyring import ALICE, BOB, bearer, key, write

CONFIG = GatewayConfig()
DIGEST = "0" * 64
POOLED = PoolingConfig(mode="mean", normalize=True, size=4)


def engine(name: str, **changes: Any) -> FakeEngineClient:
    client = FakeEngineClient(say(f"I am {name}"))
    client.welcome = welcome(model=name, digest=f"digest of {name}", **changes)
    client.status = status(fingerprint=f"fingerprint of {name}")
    return client


@pytest.fixture
def engines() -> dict[str, FakeEngineClient]:
    return {
        "red": engine("red", other_names=("rouge",)),
        "blue": engine("blue"),
        "vectors": engine("vectors", pooling=POOLED, pooling_tasks=("embed",)),
    }


def backends(engines: dict[str, FakeEngineClient]) -> list[ModelBackend]:
    return [
        ModelBackend(client, CONFIG, (name,))  # type: ignore[arg-type]
        for name, client in engines.items()
    ]


@pytest.fixture
async def several(engines: dict[str, FakeEngineClient]) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(engines) as client:
        yield client


def client_of(engines: dict[str, FakeEngineClient], **config: Any) -> httpx.AsyncClient:
    app = create_app(backends(engines), msgspec.structs.replace(CONFIG, **config))
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


MESSAGES = [{"role": "user", "content": "Who are you?"}]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Who?", "max_tokens": 9}),
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/responses", {"input": "Who are you?"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    ("/api/chat", {"messages": MESSAGES, "stream": False}),
    ("/api/generate", {"prompt": "Who?", "stream": False}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_a_request_gets_the_model_that_it_names(
    several: httpx.AsyncClient, engines: dict[str, FakeEngineClient], path: str, body: Any
) -> None:
    for asked, model in (("blue", "blue"), ("red", "red"), ("rouge", "red")):
        before = {name: len(client.submitted) for name, client in engines.items()}
        reply = await several.post(path, json={"model": asked, **body})
        assert reply.status_code == 200, reply.text
        assert f"I am {model}" in reply.text
        assert reply.json()["model"].startswith(model)
        for name, client in engines.items():
            assert len(client.submitted) == before[name] + (name == model)


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_an_unknown_name_is_a_404_that_lists_what_there_is(
    several: httpx.AsyncClient, path: str, body: Any
) -> None:
    reply = await several.post(path, json={"model": "green", **body})
    assert reply.status_code == 404
    assert "green" in reply.text
    for name in ("red", "blue", "vectors"):
        assert name in reply.text


async def test_no_name_is_refused_where_there_are_several(several: httpx.AsyncClient) -> None:
    reply = await several.post("/v1/completions", json={"prompt": "Who?"})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "model"
    assert '"red", "blue", "vectors"' in reply.json()["error"]["message"]


async def test_a_pause_names_its_model(
    several: httpx.AsyncClient, engines: dict[str, FakeEngineClient]
) -> None:
    assert (await several.post("/pause")).status_code == 400
    assert (await several.post("/pause", params={"model": "green"})).status_code == 404
    assert (await several.post("/pause", params={"model": "blue"})).status_code == 200
    for name, client in engines.items():
        told = (await several.get("/is_paused", params={"model": name})).json()
        assert told == {"is_paused": name == "blue"}
        assert client.pauses == ([(True, True)] if name == "blue" else [])


async def test_what_a_model_is_for_is_its_own(several: httpx.AsyncClient) -> None:
    body = {"model": "vectors", "prompt": "Who?"}
    reply = await several.post("/v1/completions", json=body)
    assert reply.status_code == 400
    reply = await several.post("/v1/embeddings", json={"model": "red", "input": "Who?"})
    assert reply.status_code == 400


async def test_all_are_listed_each_with_its_own_facts(
    several: httpx.AsyncClient, engines: dict[str, FakeEngineClient]
) -> None:
    engines["blue"].name_adapters([adapter("rhymes")])
    cards = (await several.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"]) for card in cards] == [
        ("red", "red"),
        ("rouge", "red"),
        ("blue", "blue"),
        ("rhymes", DIGEST),
        ("vectors", "vectors"),
    ]
    assert cards[-1]["tasks"] == ["embed"]
    tags = (await several.get("/api/tags")).json()["models"]
    assert [tag["name"] for tag in tags] == [f"{card['id']}:latest" for card in cards]
    one = (await several.get("/v1/models/blue")).json()
    assert one == cards[2]


def adapter(name: str) -> NamedAdapter:
    return NamedAdapter(name, AdapterFile(DIGEST, f"/adapters/{name}"), 1, 8)


async def test_an_adapter_s_name_leads_to_its_model(
    several: httpx.AsyncClient, engines: dict[str, FakeEngineClient]
) -> None:
    engines["blue"].name_adapters([adapter("rhymes")])
    body = {"model": "rhymes", "prompt": "Who?", "max_tokens": 9}
    reply = await several.post("/v1/completions", json=body)
    assert reply.json()["model"] == "rhymes"
    [terms] = engines["blue"].terms
    assert terms.adapter is not None
    assert not engines["red"].terms


async def test_one_that_is_away_hurts_no_other(
    several: httpx.AsyncClient, engines: dict[str, FakeEngineClient]
) -> None:
    engines["red"].connected = False
    body = {"prompt": "Who?", "max_tokens": 9}
    reply = await several.post("/v1/completions", json={"model": "red", **body})
    assert reply.status_code == 503
    reply = await several.post("/v1/completions", json={"model": "blue", **body})
    assert reply.status_code == 200
    assert (await several.get("/health/ready")).status_code == 200
    for client in engines.values():
        client.connected = False
    assert (await several.get("/health/ready")).status_code == 503


async def test_metrics_and_status_tell_models_apart(several: httpx.AsyncClient) -> None:
    body = {"prompt": "Who?", "max_tokens": 9}
    for name in ("red", "blue", "blue"):
        await several.post("/v1/completions", json={"model": name, **body})
    page = Page((await several.get("/metrics")).text)
    for name, tokens in {"red": 4, "blue": 8, "vectors": 0}.items():
        assert page.value("vllm:prompt_tokens_total", model_name=name) == tokens
    state = (await several.get("/status")).json()
    assert [each["model"] for each in state["models"]] == ["red", "blue", "vectors"]
    assert [each["model"] for each in state["engines"]] == ["red", "blue", "vectors"]


async def test_a_key_sees_and_uses_its_own_models_only(
    engines: dict[str, FakeEngineClient], tmp_path: Path
) -> None:
    keys = write(tmp_path / "keys.json", key(ALICE, models=["blue"]))
    async with client_of(engines, api_keys=keys) as client:
        headers = bearer(ALICE)
        listed = (await client.get("/v1/models", headers=headers)).json()["data"]
        assert [card["id"] for card in listed] == ["blue"]
        for model, code in (("blue", 200), ("red", 403)):
            body = {"model": model, "prompt": "Who?", "max_tokens": 9}
            reply = await client.post("/v1/completions", json=body, headers=headers)
            assert reply.status_code == code
        body = {"model": "green", "prompt": "Who?"}
        reply = await client.post("/v1/completions", json=body, headers=headers)
        assert reply.status_code == 404
        assert "red" not in reply.text


def test_a_name_is_one_model_s(engines: dict[str, FakeEngineClient]) -> None:
    twice = [*backends(engines), ModelBackend(engines["red"], CONFIG, ("x", "blue"))]  # type: ignore[arg-type]
    with pytest.raises(StartupError, match="two models are named 'blue'"):
        ModelRegistry(twice)


def test_endpoints_are_grouped_by_the_model_in_front() -> None:
    assert named_endpoints("tcp://a:1, dns://b:2") == {"": "tcp://a:1, dns://b:2"}
    assert named_endpoints("m/x=tcp://a:1,n=ipc:///p=q,m/x=tcp://b:2") == {
        "m/x": "tcp://a:1,tcp://b:2",
        "n": "ipc:///p=q",
    }
    with pytest.raises(InvalidRequest, match="no model name in front"):
        named_endpoints("m=tcp://a:1,tcp://b:2")


async def test_a_key_sees_the_state_of_its_own_models(
    engines: dict[str, FakeEngineClient], tmp_path: Path
) -> None:
    """Neither names nor counts of others, wherever state is told."""
    keys = write(tmp_path / "keys.json", key(ALICE, models=["blue"]), key(BOB))
    async with client_of(engines, api_keys=keys) as client:
        whole = (await client.get("/status", headers=bearer(BOB))).json()
        assert {"red", "blue", "vectors"} == {each["model"] for each in whole["models"]}
        answer = await client.get("/status", headers=bearer(ALICE))
        assert [each["model"] for each in answer.json()["models"]] == ["blue"]
        assert [each["model"] for each in answer.json()["engines"]] == ["blue"]
        for hidden in ("red", "rouge", "vectors"):
            assert f'"{hidden}' not in answer.text
            assert f"of {hidden}" not in answer.text
        for each in engines.values():
            each.connected = False
            each.ready = False
        for path, headers in (("/status", bearer(ALICE)), ("/health/ready", {})):
            answer = await client.get(path, headers=headers)
            assert "red:" not in answer.text
            assert "vectors:" not in answer.text
