"""SageMaker's paths answer as the endpoints do that stand behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock.protocol.common import AdapterFile, NamedAdapter
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.app import create_app
from testing.pooling_models import save
from tests.adapter_folders import random_factors, write_peft
from tests.gateway import sse
from tests.gateway.fake_engine import FakeEngineClient, status, welcome
from tests.gateway.keyring import ADMIN, ALICE, bearer, key, write
from tests.gateway.pooling.pooling_engine import pooling_gateway
from tests.worker.pooling.late_models import SIZES, late_tokenizer

URL = "/invocations"
MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": MESSAGES, "seed": 1}
TEXT = {"prompt": "Hi", "seed": 1}
SQL = AdapterFile("a" * 64, "/adapters/sql")


def alike(one: httpx.Response, other: httpx.Response) -> bool:
    """Whether both say the same, but for ids and times."""
    changing = ("id", "created")
    kept = [
        {name: value for name, value in each.json().items() if name not in changing}
        for each in (one, other)
    ]
    return one.status_code == other.status_code == 200 and kept[0] == kept[1]


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]
)
async def test_a_body_is_answered_by_the_endpoint_whose_fields_it_has(
    http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    assert alike(await http.post(URL, json=body), await http.post(path, json=body))
    streamed = (await http.post(URL, json={**body, "stream": True})).text
    assert sse.parse(streamed)[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("content", "status_code", "words"),
    [
        (b'{"input": "Hi"}', 400, 'the request has "input"; with this model it must have one of'),
        (b"{}", 400, "the request has no field; with this model it must have one of messages, "),
        (b"[]", 400, "expected object"),
        (b"{", 400, "the request body must be JSON"),
        (b'{"messages": 5}', 400, "messages"),
        (b'{"messages": [], "colour": 1}', 400, "unknown field colour"),
        (b'{"prompt": "x", "model": "law"}', 404, "law"),
        (b'{"prompt": "x", "model": 5}', 400, "model"),
        (b'{"prompt": "' + b"x" * 250_000 + b'"}', 413, "larger than 200000 bytes"),
    ],
)
async def test_what_fits_nothing_is_refused(
    http: httpx.AsyncClient, content: bytes, status_code: int, words: str
) -> None:
    answer = await http.post(URL, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status_code
    assert words in answer.json()["error"]["message"]


async def test_text_that_is_no_json_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post(URL, content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415


async def test_ping_says_whether_a_request_would_be_served(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    assert (await http.get("/ping")).status_code == 200
    engine.status = status(ready=False, reason="the worker is loading")
    assert (await http.get("/ping")).status_code == 503


@pytest.fixture
def adapting(engine: FakeEngineClient) -> FakeEngineClient:
    engine.welcome = welcome(max_lora_rank=8)
    engine.adapters.learn([NamedAdapter("sql", SQL, 0, 4, "some/model")])
    return engine


async def test_a_header_names_the_adapter(
    http: httpx.AsyncClient, adapting: FakeEngineClient
) -> None:
    """Whatever the body says."""
    named = {"x-amzn-sagemaker-adapter-identifier": "sql"}
    for body in (CHAT, TEXT, {**TEXT, "model": "another"}):
        answer = await http.post(URL, json=body, headers=named)
        assert answer.json()["model"] == "sql"
        assert adapting.terms[-1].adapter == SQL
    unknown = {"x-amzn-sagemaker-adapter-identifier": "l\u00e4w".encode("latin-1")}
    assert (await http.post(URL, json=TEXT, headers=unknown)).status_code == 404


async def test_adapters_are_loaded_and_unloaded_by_admins(
    adapting: FakeEngineClient, tmp_path: Path
) -> None:
    shapes = {"model.layers.0.self_attn.q_proj": (16, 8)}
    write_peft(tmp_path / "allowed" / "law", random_factors(shapes, 4, 1))
    keys = write(tmp_path / "keys.json", key(ALICE), key(ADMIN, admin=True))
    folders = AdapterFolders(str(tmp_path / "allowed"), str(tmp_path / "cache"))
    app = create_app(adapting, GatewayConfig(api_keys=keys), adapters=folders)  # type: ignore[arg-type]  # It stands in for one.
    transport, admin = httpx.ASGITransport(app), bearer(ADMIN)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        body = {"name": "law", "src": "law", "preload": True, "pin": False}
        assert (await client.post("/adapters", json=body, headers=bearer(ALICE))).status_code == 403
        assert (await client.post("/adapters", json=body, headers=admin)).status_code == 200
        assert adapting.adapters.find("law") is not None
        assert (await client.delete("/adapters/law", headers=bearer(ALICE))).status_code == 403
        assert (await client.delete("/adapters/law", headers=admin)).status_code == 200
        assert adapting.adapters.find("law") is None
        assert (await client.delete("/adapters/law", headers=admin)).status_code == 404
        wrong = await client.post("/adapters", json={"name": "x", "src": "/x"}, headers=admin)
        assert wrong.status_code == 400


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that embeds, one that ranks and one that classifies."""
    made = {name: tmp_path_factory.mktemp(name) / "m" for name in ("embed", "rank", "classify")}
    save(made["embed"], "BertModel", **SIZES)
    for name, count in (("rank", 1), ("classify", 3)):
        labels = {place: f"label {place}" for place in range(count)}
        save(made[name], "BertForSequenceClassification", **SIZES, id2label=labels)
    for folder in made.values():
        late_tokenizer(folder)
    return made


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ("embed", "/v1/embeddings", {"input": ["w50 w51", "w80"]}),
        ("embed", "/pooling", {"input": "w50 w51", "task": "token_embed"}),
        ("embed", "/score", {"text_1": "w50", "text_2": ["w51", "w52"]}),
        ("embed", "/rerank", {"query": "w50", "documents": ["w51", "w52"]}),
        ("rank", "/score", {"queries": "w50", "documents": ["w51", "w52"]}),
        ("rank", "/score", {"queries": ["w50"], "items": ["w51"]}),
        ("rank", "/score", {"data_1": "w50", "data_2": ["w51", "w52"]}),
        ("rank", "/rerank", {"query": "w50", "documents": ["w51", "w52"], "top_n": 1}),
        ("classify", "/classify", {"input": ["w50 w51", "w80"]}),
    ],
)
async def test_pooling_bodies_are_told_apart(
    folders: dict[str, Path], tmp_path: Path, model: str, path: str, body: dict[str, Any]
) -> None:
    async with pooling_gateway(folders[model], tmp_path) as client:
        assert alike(await client.post(URL, json=body), await client.post(path, json=body))


async def test_scores_are_the_same_by_all_names(folders: dict[str, Path], tmp_path: Path) -> None:
    first, second = "w50", ["w51", "w52"]
    async with pooling_gateway(folders["rank"], tmp_path) as client:
        plain = await client.post("/score", json={"text_1": first, "text_2": second})
        for one, other in (("queries", "items"), ("data_1", "data_2"), ("queries", "documents")):
            assert alike(await client.post("/score", json={one: first, other: second}), plain)
        both = await client.post("/score", json={"text_1": first, "items": second, "data_2": "x"})
    assert both.status_code == 400
    assert "must be given, not items and data_2" in both.text


async def test_a_pooling_model_generates_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    async with pooling_gateway(folders["embed"], tmp_path) as client:
        answer = await client.post(URL, json=TEXT)
    assert answer.status_code == 400
    assert "one of input, messages, query with documents, text_1" in answer.text
