"""What editors and chat programs ask before the first question, by their public sources: which
models there are, what they can do, and how long a prompt may be."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from tests.gateway.fake_engine import CONTEXT, MODEL, FakeEngineClient

KEYED = {"authorization": "Bearer any"}
# What Node's own fetch adds; nothing of it is a page's of another site.
NODE = {"sec-fetch-mode": "cors", "accept-language": "*", "user-agent": "node"}
TAGGED = f"{MODEL}:latest"


async def got(http: httpx.AsyncClient, path: str, **headers: str) -> Any:
    reply = await http.get(path, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def shown(http: httpx.AsyncClient, name: str) -> Any:
    reply = await http.post("/api/show", json={"model": name}, headers=NODE)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("family", ["qwen3", ""])
async def test_copilot_by_ollama(
    http: httpx.AsyncClient, engine: FakeEngineClient, family: str
) -> None:
    """It reads the context under the architecture's name; without it, a prompt may have no token.
    It chats through OpenAI's API with Ollama's name of the model."""
    engine.template.source = "{{ messages }}{{ tools }}"
    engine.welcome = msgspec.structs.replace(engine.welcome, family=family)
    version = (await got(http, "/api/version", **NODE))["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]
    models = (await got(http, "/api/tags", **NODE))["models"]
    assert [each["model"] for each in models] == [TAGGED]
    told = await shown(http, TAGGED)
    about = told["model_info"]
    assert about["general.basename"] == MODEL
    assert about["general.architecture"] == family or not family
    assert about[f"{about['general.architecture']}.context_length"] == CONTEXT
    assert "tools" in told["capabilities"]
    body = {"model": TAGGED, "messages": [{"role": "user", "content": "Hi"}], "stream": False}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize("name", [MODEL, TAGGED])
async def test_codex_by_ollama(http: httpx.AsyncClient, name: str) -> None:
    """`codex --oss` refuses releases without Responses, and has a model pulled whose name isn't
    listed as it was given."""
    version = (await got(http, "/api/version", accept="*/*"))["version"]
    assert [int(part) for part in version.split(".")] >= [0, 13, 4]
    models = (await got(http, "/api/tags", accept="*/*"))["models"]
    if name not in [each["name"] for each in models]:
        pulled = await http.post("/api/pull", json={"model": name, "stream": True})
        assert pulled.status_code == 200, pulled.text
        assert [json.loads(line)["status"] for line in pulled.text.splitlines()] == ["success"]
    body = {"model": name, "input": "Hi", "store": False}
    assert (await http.post("/v1/responses", json=body)).status_code == 200


async def test_zed_by_ollama(http: httpx.AsyncClient) -> None:
    """It wants every field of a model's entry."""
    (model,) = (await got(http, "/api/tags", accept="application/json"))["models"]
    assert {"name", "modified_at", "size", "digest"} <= model.keys()
    details = {"format", "family", "families", "parameter_size", "quantization_level"}
    assert details <= model["details"].keys()
    assert isinstance((await shown(http, model["name"]))["capabilities"], list)
    body = {
        "model": model["name"],
        "messages": [{"role": "user", "content": "Hi", "images": None}],
        "stream": True,
        "keep_alive": -1,
        "options": {"num_ctx": 4096, "num_predict": None, "stop": [], "temperature": 1.0},
        "tools": [],
        "think": None,
    }
    reply = await http.post("/api/chat", json=body)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("headers", [KEYED, KEYED | NODE], ids=["plain", "node"])
async def test_a_list_of_models(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """Open WebUI, n8n, Cline and Continue list them so; Codex of its releases before 0.156 too."""
    for path in ("/v1/models", "/v1/models?client_version=0.155.1"):
        listed = await got(http, path, **headers)
        assert listed["object"] == "list"
        assert [(each["id"], each["object"]) for each in listed["data"]] == [(MODEL, "model")]


async def test_claude_code_lists_models(http: httpx.AsyncClient) -> None:
    """With CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY."""
    headers = {"anthropic-version": "2023-06-01", **KEYED}
    listed = await got(http, "/v1/models?limit=1000", **headers)
    assert [each["id"] for each in listed["data"]] == [MODEL]


async def test_open_webuis_titles(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    """Titles, tags and follow-up questions are one message each, answered whole."""
    limits = msgspec.structs.replace(engine.welcome.limits, max_model_len=2048)
    engine.welcome = msgspec.structs.replace(engine.welcome, limits=limits)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title."}],
        "stream": False,
        "max_completion_tokens": 1000,
    }
    reply = await http.post("/v1/chat/completions", json=body, headers=KEYED)
    assert reply.status_code == 200, reply.text


async def test_continues_completions(http: httpx.AsyncClient) -> None:
    """Autocompletion goes to the older endpoint, with the model's own marks in the prompt."""
    body = {
        "model": MODEL,
        "prompt": "<|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>",
        "max_tokens": 32,
        "temperature": 0.01,
        "stop": ["<|endoftext|>", "<|fim_prefix|>", "\n\n", "/src/"],
        "stream": True,
    }
    reply = await http.post("/v1/completions", json=body, headers={**KEYED, "api-key": "any"})
    assert reply.status_code == 200, reply.text
    assert reply.text.endswith("data: [DONE]\n\n")
