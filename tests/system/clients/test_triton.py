"""NVIDIA's Triton client over gRPC, against running systems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from testing.serving import Server
from tests.system.clients.installed import run_script

pytestmark = [pytest.mark.timeout(600)]

GRPC = ("--grpc-port", "0")
TEXTS = ["A penstock is a gated pipe.", "Water falls.", "Übergrößenträger 👋"]


def address(server: Server) -> str:
    found = re.search(r"address=(127\.0\.0\.1:\d+) grpc=true", server.stderr, re.IGNORECASE)
    assert found is not None, server.stderr
    return found[1]


@pytest.fixture(scope="module")
def generating(tiny_model: str) -> Iterator[Server]:
    with Server(tiny_model, *GRPC) as running:
        yield running


def got(told: dict[str, Any], feature: str) -> Any:
    result = told.get(feature) or told.get("") or {"error": f"{feature} did not run"}
    assert "error" not in result, result["error"]
    return result["got"]


def test_it_gets_what_http_says(generating: Server) -> None:
    told = run_script(
        "triton_client", address(generating), generating.model, "", "state", "infer", "stream"
    )
    assert got(told, "state") == {
        "live": True,
        "ready": True,
        "server": "penstock",
        "outputs": ["text_output", "finish_reason"],
    }
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 16}
    status, reply = generating.post("/v1/completions", body)
    assert status == 200, reply
    text = reply["choices"][0]["text"]
    assert got(told, "infer") == got(told, "stream") == text


def test_it_gets_embeddings() -> None:
    with Server("--model", "minilm", *GRPC) as pooling:
        told = run_script("triton_client", "", pooling.model, address(pooling), "embeddings")
        vectors = got(told, "embeddings")
        status, reply = pooling.post("/v1/embeddings", {"input": TEXTS})
        assert status == 200, reply
    for vector, item in zip(vectors, reply["data"], strict=True):
        assert vector == pytest.approx(item["embedding"], abs=1e-6)
