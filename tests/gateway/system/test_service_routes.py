"""Health, status, version, models, errors of the router, request ids."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.errors import EngineUnavailable, Overloaded
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import GenerationDefaults
from penstock.request.sampling_params import SamplingParams
from penstock.version import __version__
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import CONTEXT, MODEL, FakeEngineClient, Step, status, welcome
from tests.gateway.keyring import ALICE, bearer, key, write
from tests.gateway.media import SeeingGateway
from tests.gateway.transcription.test_held import HearingEngine

QUESTION = {"messages": [{"role": "user", "content": "Hi"}]}


async def test_live(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.connected = False
    assert (await http.get("/health/live")).status_code == 200
    assert (await http.head("/health/live")).status_code == 200


@pytest.mark.parametrize("path", ["/health/ready", "/health", "/ping"])
async def test_ready(http: httpx.AsyncClient, engine: FakeEngineClient, path: str) -> None:
    response = await http.get(path)
    assert response.status_code == 200
    assert response.json() == {
        "ok": True,
        "reason": "",
        "pid": os.getpid(),
        "status": "ok",
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"connected": False}, "no session"),
        ({"status": None}, "has not reported"),
        ({"age": 3.5}, "has not reported"),
        ({"status": status(ready=False, reason="the worker is loading")}, "worker is loading"),
        ({"status": status(draining=True)}, "draining"),
    ],
)
async def test_not_ready(
    http: httpx.AsyncClient, engine: FakeEngineClient, change: dict[str, object], reason: str
) -> None:
    for name, value in change.items():
        setattr(engine, name, value)
    response = await http.get("/health/ready")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["ok"] is False
    assert reason in response.json()["reason"]


async def test_status(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    state = (await http.get("/status")).json()
    assert state["ready"] is True
    assert state["model"] == MODEL
    assert state["engine"]["blocks_total"] == 100
    assert state["engine"]["blocks_used"] == 40
    assert state["engine"]["waiting"] == 1
    assert state["status_age"] == pytest.approx(0.1)
    assert state["gateway"]["connected"] is True
    assert state["gateway"]["open_requests"] == 0
    [one] = state["engines"]
    assert (one["endpoint"], one["boot"], one["blocks_used"]) == ("ipc:///fake", "b00t", 40)
    assert (one["connected"], one["ready"], one["waiting"], one["running"]) == (True, True, 1, 2)
    assert state["boot"] == "b00t"
    engine.connected = False
    state = (await http.get("/status")).json()
    assert state["engine"] is None
    assert state["gateway"]["connected"] is False
    assert "no session" in state["reason"]


async def test_the_load_is_what_is_being_answered(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    go_on = asyncio.Event()

    def script(prompt: list[int], params: SamplingParams) -> Iterator[Step]:
        while not go_on.is_set():
            yield 0.01
        yield [SequenceDelta(index=0, text="a", token_ids=[97], finish_reason="stop")]

    async def load() -> int:
        found: int = (await http.get("/load")).json()["server_load"]
        return found

    engine.script = script
    assert await load() == 0
    asked = [
        asyncio.create_task(http.post("/v1/chat/completions", json=QUESTION)) for _ in range(2)
    ]
    while await load() < 2:
        await asyncio.sleep(0)  # Lets both requests begin: what is waited for is the count.
    go_on.set()
    assert {(await each).status_code for each in asked} == {200}
    assert await load() == 0


async def test_version(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json() == {"version": __version__}


async def test_models_show_what_silent_requests_get(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.welcome = welcome(generation=GenerationDefaults(temperature=0.2, max_new_tokens=9))
    card = (await http.get(f"/v1/models/{MODEL}")).json()
    assert card["default_sampling_params"] == {"temperature": 0.2, "max_tokens": 9}


async def test_only_chats_with_the_demonstration_model_change_its_sampling(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.welcome = welcome(model="smollm2-135m")
    [card] = (await http.get("/v1/models")).json()["data"]
    assert card["chat_params"]["repetition_penalty"] == 1.1
    assert card["chat_params"]["max_tokens"] == 1024
    assert "short" in card["chat_params"]["system"]
    assert card["default_sampling_params"] == {}
    # Whatever requests call it; and another model of that name is none.
    small = card["chat_params"]
    engine.welcome = welcome(hub_id="HuggingFaceTB/SmolLM2-135M-Instruct")
    [card] = (await http.get("/v1/models")).json()["data"]
    assert (card["id"], card["chat_params"]) == (MODEL, small)
    assert card["hub_id"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    engine.welcome = welcome(model="smollm2-135m", hub_id="org/other")
    [card] = (await http.get("/v1/models")).json()["data"]
    assert "max_tokens" not in card["chat_params"]


async def test_a_model_goes_by_all_its_names(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.welcome = welcome(other_names=("b", "org/c"))
    names = [card["id"] for card in (await http.get("/v1/models")).json()["data"]]
    assert names == [MODEL, "b", "org/c"]
    for name in names:
        assert (await http.get(f"/v1/models/{name}")).json()["id"] == name
        reply = await http.post("/v1/chat/completions", json={"model": name, **QUESTION})
        assert (reply.status_code, reply.json()["model"]) == (200, MODEL)
    assert (await http.get("/v1/models/d")).status_code == 404


async def test_a_model_says_what_computes_it(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    """In the worker's words, as the libraries that it chose are known to it alone; and nothing
    before one is ready."""
    assert "arithmetic" not in (await http.get(f"/v1/models/{MODEL}")).json()
    words = ("triton 3.6.0 any order long chunks FlashAttention 3 3.0.0", "tp1")
    engine.status = status(arithmetic=words)
    assert (await http.get(f"/v1/models/{MODEL}")).json()["arithmetic"] == [list(words)]


async def test_models(http: httpx.AsyncClient) -> None:
    model = {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "penstock",
        "max_model_len": CONTEXT,
        "tasks": ["generate"],
        "default_sampling_params": {},
        "chat_params": {
            "repetition_detection": {
                "max_pattern_size": 128,
                "min_pattern_size": 8,
                "min_count": 6,
            }
        },
        "root": MODEL,
        "parent": None,
        "media": {},
        "tool_call_parser": "json",
        "reasoning_parser": "none",
        "type": "base",
        "max_context_length": CONTEXT,
        "capabilities": {
            "completion_chat": True,
            "completion_fim": False,
            "function_calling": False,
            "reasoning": False,
            "vision": False,
            "classification": False,
            "audio_transcription": False,
        },
    }
    assert (await http.get("/v1/models")).json() == {"object": "list", "data": [model]}
    assert (await http.get(f"/v1/models/{MODEL}")).json() == model  # its name holds a slash
    missing = await http.get("/v1/models/gpt-4")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_a_pooling_model_says_what_it_does(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    pooling = PoolingConfig(mode="mean", normalize=True, size=4)
    engine.welcome = welcome(pooling=pooling, pooling_tasks=("embed", "token_embed"))
    [model] = (await http.get("/v1/models")).json()["data"]
    assert model["tasks"] == ["embed", "token_embed"]


async def test_a_speech_model_says_what_it_does() -> None:
    async with SeeingGateway(HearingEngine()) as gateway:
        [model] = (await gateway.client.get("/v1/models")).json()["data"]
    assert (model["tasks"], model["media"]) == (["transcription"], {})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/models"])
async def test_without_an_engine(
    http: httpx.AsyncClient, engine: FakeEngineClient, path: str, stream: bool
) -> None:
    engine.connected = False
    if path == "/v1/models":
        response = await http.get(path)
    else:
        body = QUESTION if "chat" in path else {"prompt": "x"}
        response = await http.post(path, json=body | {"stream": stream})
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_refused_by_the_engine(
    http: httpx.AsyncClient, engine: FakeEngineClient, stream: bool
) -> None:
    for refusal, seconds in [(Overloaded("full", retry_after=4.2), 5), (EngineUnavailable("x"), 1)]:
        engine.refusal = refusal
        response = await http.post("/v1/chat/completions", json=QUESTION | {"stream": stream})
        assert response.status_code == 503
        assert response.headers["retry-after"] == str(seconds)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/chat/completions//", 404, "not_found"),
        ("GET", "/docs/", 404, "not_found"),
        ("POST", "/docs", 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health/live", 405, "method_not_allowed"),
    ],
)
async def test_routing_errors(
    http: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    response = await http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.headers["x-request-id"]
    if status == 405:
        assert response.headers["allow"]


async def test_a_slash_at_the_end_of_a_path_changes_nothing(http: httpx.AsyncClient) -> None:
    for path in ("/v1/models", f"/v1/models/{MODEL}", "/version", "/api/tags"):
        plain, other = await http.get(path), await http.get(f"{path}/")
        assert (other.status_code, other.content) == (200, plain.content)
    answered = await http.post("/v1/chat/completions/", json=QUESTION)
    assert answered.json()["choices"][0]["finish_reason"]
    wrong = await http.post("/api/chat/", json={"messages": 1})
    assert wrong.status_code == 400
    assert isinstance(wrong.json()["error"], str)  # Ollama's form.
    assert (await http.get("/")).headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions//", "/v1/chat/completions"),
        ("/v1/v1/models", "/v1/models"),
        ("/openai/v1/embeddings", "/v1/embeddings"),
        ("/v1/health", "/health"),
        ("/v1", None),
        ("/nothing/v1", None),
        ("/a" * 5000, None),
    ],
)
async def test_a_wrong_base_url_is_noticed(
    http: httpx.AsyncClient, path: str, meant: str | None
) -> None:
    message = (await http.post(f"http://gateway{path}")).json()["error"]["message"]
    hint = "" if meant is None else f"; did you mean {meant}?"
    assert message == f"there is no endpoint at {path[:200]}{hint}"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/files", "GET, HEAD, POST"),
        ("/v1/conversations/x", "DELETE, GET, HEAD, POST"),
        ("/v1/messages/batches", "GET, HEAD, POST"),
    ],
)
async def test_all_methods_of_a_path_are_named(
    http: httpx.AsyncClient, path: str, allowed: str
) -> None:
    response = await http.put(path)
    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    assert (
        response.json()["error"]["message"] == f"PUT is not allowed at {path}; allowed: {allowed}"
    )


async def test_unforeseen_errors_are_a_500_without_details(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.refusal = ZeroDivisionError("secret")  # type: ignore[assignment]
    response = await http.post("/v1/chat/completions", json=QUESTION)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("abc-123", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a b", False),
        ("é".encode(), False),
        (None, False),
    ],
)
@pytest.mark.parametrize("path", ["/version", "/nothing", "/v1/models/gpt-4"])
async def test_request_id(
    http: httpx.AsyncClient, path: str, sent: str | bytes | None, kept: bool
) -> None:
    headers = {} if sent is None else {"x-request-id": sent}
    responses = [await http.get(path, headers=headers) for _ in range(2)]
    ids = [response.headers.get_list("x-request-id") for response in responses]
    if kept:
        assert ids == [[sent], [sent]]
    else:
        assert all(len(found) == 1 and found[0] != sent for found in ids)
        assert ids[0] != ids[1]


async def test_content_encoding(http: httpx.AsyncClient) -> None:
    response = await http.post(
        "/v1/completions", content=b"\x1f\x8b", headers={"content-encoding": "gzip"}
    )
    assert response.status_code == 400
    assert "gzip" in response.json()["error"]["message"]


async def test_openapi_document(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health/ready"} <= set(
        document["paths"]
    )
    schemas = document["components"]["schemas"]
    assert "messages" in schemas["ChatRequest"]["required"]
    assert {"prompt", "temperature", "parse_special"} <= set(
        schemas["CompletionRequest"]["properties"]
    )
    import json
    import re

    for name in re.findall(r"#/components/schemas/(\w+)", json.dumps(document)):
        assert name in schemas


@pytest.mark.parametrize("host", ["[::1", "[", "a]b", "x" * 500, "a:b:c", "", "/", "é"])
@pytest.mark.parametrize("path", ["/nothing", "/v1/models/x", "/version"])
async def test_a_host_that_is_none(http: httpx.AsyncClient, host: str, path: str) -> None:
    reply = await http.get(path, headers={"host": host.encode()})
    if host == "":
        assert reply.status_code == (200 if path == "/version" else 404)
    else:
        assert reply.json()["error"]["code"] == "host_not_allowed"


async def test_a_proxys_prefix_is_left_out_of_a_path(tmp_path: Path) -> None:
    """With keys: what may be asked for without one is told by the path that is served."""
    keys = write(tmp_path / "keys.json", key(ALICE))
    config = GatewayConfig(root_path="/llm/a", api_keys=keys)
    app = create_app(FakeEngineClient(), config)  # type: ignore[arg-type]  # It stands in for one.
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for path in ("/v1/models", "/llm/a/v1/models", "/llm/a/v1/models/"):
            assert (await http.get(path)).status_code == 401
            reply = await http.get(path, headers=bearer(ALICE))
            assert reply.json()["data"][0]["id"] == MODEL
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        reply = await http.post("/llm/a/v1/chat/completions", json=body, headers=bearer(ALICE))
        assert reply.json()["object"] == "chat.completion"
        assert (await http.get("/llm/a/health/live")).status_code == 200
        assert (await http.get("/llm/a")).status_code == 200
        for path in ("/llm/v1/models", "/llm/ab/v1/models", "/v1/llm/a/models"):
            assert (await http.get(path, headers=bearer(ALICE))).status_code == 404


@pytest.mark.parametrize("wrong", ["llm", "/llm/", "/l lm", "//", "/llm?x"])
def test_a_prefix_is_one_of_paths(wrong: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="root_path"):
        msgspec.convert({"root_path": wrong}, GatewayConfig)
