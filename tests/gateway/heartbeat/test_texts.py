"""Long texts that are accepted become token ids, and many ids text, beside the event loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.heartbeat.beaten import BeatenGateway, beaten
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.engines import CONTEXT, GeneratingEngine, PoolingEngine

pytestmark = pytest.mark.timeout(300)

FITS = "some words, " * (CONTEXT // 12 - 50)
"""Nearly as many tokens as the context has."""
LONG = "some words, " * (24 * CONTEXT // 12)
MESSAGE = {"role": "user", "content": FITS}
SHORT = {"role": "user", "content": "Hi"}
COMPLETIONS = "/v1/completions"
GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "a prompt": (COMPLETIONS, {"prompt": FITS, "max_tokens": 1}),
    "a prompt of wide characters": (COMPLETIONS, {"prompt": "中文" * (CONTEXT // 7)}),
    "a prompt to cut": (COMPLETIONS, {"prompt": LONG, "truncate_prompt_tokens": 9}),
    "a cut prompt to echo": (
        COMPLETIONS,
        {"prompt": LONG, "truncate_prompt_tokens": -1, "max_tokens": 1, "echo": True},
    ),
    "a conversation": ("/v1/chat/completions", {"messages": [MESSAGE]}),
    "variables": (
        "/v1/chat/completions",
        {"messages": [SHORT], "chat_template_kwargs": {"unused": [["a"] * 30] * 8000}},
    ),
    "a prediction": (COMPLETIONS, {"prompt": "a", "prediction": {"content": LONG}}),
    "an input to cut": ("/v1/embeddings", {"input": LONG, "truncate_prompt_tokens": -1}),
    "a text to count": ("/tokenize", {"prompt": FITS, "return_token_strs": True}),
    "ids": ("/detokenize", {"tokens": list(range(256)) * 1950}),
}


@pytest.fixture(scope="module")
def gateways() -> Iterator[dict[bool, BeatenGateway]]:
    """Gateways by whether their model embeds."""
    with (
        collecting_as_a_gateway(),
        beaten(GeneratingEngine()) as generating,
        beaten(PoolingEngine()) as embedding,
    ):
        yield {False: generating, True: embedding}


@pytest.mark.parametrize("name", GIVEN)
def test_a_long_text_holds_nothing_up(gateways: dict[bool, BeatenGateway], name: str) -> None:
    path, body = GIVEN[name]
    gateway, sent = gateways[path == "/v1/embeddings"], json.dumps(body).encode()
    status, late = gateway.watched(lambda: gateway.post(path, sent))
    assert status == 200
    assert late <= latest()
