"""Clients that people use, each as its registry has it, against a running system.

A client's script (in scripts/) runs once, with all its features; each feature is a test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.serving import Server
from tests.docs.snippets import BASE, snippets
from tests.system.clients.installed import ROOT, run_code, run_script, table

pytestmark = [pytest.mark.timeout(600)]

CAPITAL = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
TEXTS = ["A penstock is a gated pipe.", "Water falls.", "Übergrößenträger 👋"]
Results = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def pooling() -> Iterator[Server]:
    """A system with an embedding model."""
    running = Server("--model", "minilm")
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def results(server: Server) -> Results:
    """What a client's script got, of the features that need a generative model."""

    @cache
    def of(script: str) -> dict[str, Any]:
        wanted = [feature for name, feature in GENERATIVE if name == script]
        return run_script(script, server.url, server.model, "", *wanted)

    return of


@pytest.fixture(scope="module")
def whole_chat(server: Server) -> str:
    """The answer to CAPITAL, asked for without any client."""
    body = {"model": server.model, "messages": CAPITAL, "temperature": 0, "max_tokens": 16}
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200, reply
    return str(reply["choices"][0]["message"]["content"])


def got(told: dict[str, Any], feature: str) -> Any:
    result = told.get(feature) or told.get("") or {"error": f"{feature} did not run"}
    assert "error" not in result, result["error"]
    return result["got"]


def is_the_chat(value: Any, chat: str) -> None:
    assert value == chat
    assert "Paris" in chat


def is_the_stream(value: Any, chat: str) -> None:
    assert "".join(value["texts"]) == chat
    # On a busy machine several tokens come at once.
    assert len([text for text in value["texts"] if text]) >= 2
    assert value.get("completion_tokens", 16) <= 16


def is_a_call(value: Any, chat: str) -> None:
    arguments = value["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert value.get("name", "get_weather") == "get_weather"
    assert list(arguments) == ["city"]
    assert isinstance(arguments["city"], str)
    assert len(value.get("ids", [1])) == 1
    assert isinstance(value.get("after", ""), str)


def is_a_capital(value: Any, chat: str) -> None:
    assert sorted(value) == ["city", "country"]
    assert all(isinstance(each, str) for each in value.values())


def is_parsed(value: Any, chat: str) -> None:
    assert sorted(value["parsed"]) == ["city", "population"]
    assert isinstance(value["parsed"]["population"], int)


def names_the_model(value: Any, chat: str) -> None:
    assert len(value) == 1


GENERATIVE: dict[tuple[str, str], Callable[[Any, str], None]] = {
    ("openai_sdk", "chat"): is_the_chat,
    ("openai_sdk", "stream"): is_the_stream,
    ("openai_sdk", "models"): names_the_model,
    ("openai_sdk", "tools"): is_a_call,
    ("openai_sdk", "streamed_tools"): is_a_call,
    ("openai_sdk", "parse"): is_parsed,
    ("litellm_client", "chat"): is_the_chat,
    ("litellm_client", "as_vllm"): is_the_chat,
    ("litellm_client", "stream"): is_the_stream,
    ("litellm_client", "tools"): is_a_call,
    ("langchain_client", "chat"): is_the_chat,
    ("langchain_client", "stream"): is_the_stream,
    ("langchain_client", "tools"): is_a_call,
    ("langchain_client", "structured"): is_a_capital,
    ("instructor_client", "json_schema"): is_a_capital,
    ("instructor_client", "tools"): is_a_capital,
}


@pytest.mark.parametrize(("script", "feature"), GENERATIVE)
def test_a_client_gets_what_the_server_says(
    script: str, feature: str, results: Results, whole_chat: str
) -> None:
    GENERATIVE[script, feature](got(results(script), feature), whole_chat)


@pytest.mark.parametrize(
    "script", ["openai_sdk", "litellm_client", "langchain_client", "cohere_client"]
)
def test_a_client_gets_embeddings(script: str, pooling: Server) -> None:
    told = run_script(script, "", "", pooling.url, "embeddings", POOLING_MODEL=pooling.model)
    vectors = got(told, "embeddings")
    status, reply = pooling.post("/v1/embeddings", {"model": pooling.model, "input": TEXTS})
    assert status == 200, reply
    assert len(vectors) == len(TEXTS)
    for vector, item in zip(vectors, reply["data"], strict=True):
        assert len(vector) == 384
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-4)
        assert vector == pytest.approx(item["embedding"], abs=1e-6)


def test_cohere_gets_packed_embeddings_and_ranks(pooling: Server) -> None:
    told = run_script("cohere_client", "", "", pooling.url, POOLING_MODEL=pooling.model)
    status, reply = pooling.post("/v1/embeddings", {"model": pooling.model, "input": TEXTS})
    assert status == 200, reply
    vectors = np.array([item["embedding"] for item in reply["data"]])
    signs = np.packbits(vectors > 0, axis=1).astype(int)
    texts, tokens, unsigned, signed = got(told, "packed")
    assert texts == TEXTS
    assert tokens == reply["usage"]["prompt_tokens"]
    assert unsigned == signs.tolist()
    assert signed == (signs - 128).tolist()
    scores = vectors @ vectors[0]
    order = sorted(range(len(TEXTS)), key=lambda place: -scores[place])[:2]
    ranks = got(told, "ranks")
    assert [place for place, _ in ranks] == order
    assert [score for _, score in ranks] == pytest.approx([scores[at] for at in order], abs=1e-4)


SCRIPTS = [each.code for each in snippets("docs/guides/clients.md") if each.language == "python"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_of_the_page_about_clients(script: str, server: Server) -> None:
    assert BASE in script
    assert '"local"' in script
    told = run_code(script.replace(BASE, server.url).replace('"local"', repr(server.model)))
    assert told.strip()


def test_the_reference_lists_them(pytestconfig: pytest.Config) -> None:
    """`python -m tests.system.clients.readme` writes it."""
    assert table() in Path(ROOT / "docs/reference/clients.md").read_text(encoding="utf-8")
