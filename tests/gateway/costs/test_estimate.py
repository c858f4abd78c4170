"""What is taken for small, and so prepared in a gateway's event loop, is: bodies of every kind, as
large as the estimate lets them be, take a few times the estimate at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock_gateway.preparing.cost import MOST_MS, estimated_ms, is_small
from testing.costs.recipes import Recipe, cost_of
from testing.costs.scene import Scene

pytestmark = pytest.mark.timeout(300)

TIMES = 10
"""Times the estimate's limit: a turn has other work than preparing, and a processor may be slow, or
cold."""
TRIES = 3

Kind = Callable[[int], dict[str, Any]]
"""A body that grows with a number."""


def _completion(prompt: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 1, **fields}


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields}


def _tools(count: int) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    return [
        {"type": "function", "function": {"name": f"f{each}", "parameters": parameters}}
        for each in range(count)
    ]


KINDS: dict[str, tuple[str, Kind]] = {
    "a text of words": ("/v1/completions", lambda n: _completion("word " * n)),
    "a text of wide characters": ("/v1/completions", lambda n: _completion("é漢" * n)),
    "prompts": ("/v1/completions", lambda n: _completion(["a"] * min(n, 128))),
    "prompts and choices": (
        "/v1/completions",
        lambda n: _completion(["a"] * min(n, 128), n=min(n, 1024 // min(n, 128))),
    ),
    "bad words": ("/v1/completions", lambda n: _completion(bad_words=["xy z"] * min(n, 256))),
    "prompts and bad words": (
        "/v1/completions",
        lambda n: _completion(["a"] * min(n, 128), bad_words=["q" * 8] * min(n, 128)),
    ),
    "biases": (
        "/v1/completions",
        lambda n: _completion(logit_bias={str(each): 1 for each in range(min(n, 1024))}),
    ),
    "allowed ids": (
        "/v1/completions",
        lambda n: _completion(["a"] * min(n, 64), allowed_token_ids=list(range(n))),
    ),
    "messages": (
        "/v1/chat/completions",
        lambda n: _chat(messages=[{"role": "user", "content": "hello"}] * n),
    ),
    "tools": ("/v1/chat/completions", lambda n: _chat(tools=_tools(n))),
    "strict tools": (
        "/v1/chat/completions",
        lambda n: _chat(tools=_tools(n), tool_choice="required"),
    ),
    "choices of a text": ("/v1/completions", lambda n: _completion(guided_choice=["ab"] * n)),
    "items": ("/v1/responses", lambda n: {"input": [{"role": "user", "content": "hi"}] * n}),
    "turns of thinking": (
        "/v1/messages",
        lambda n: {
            "max_tokens": 1,
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "b"}] * n},
                {"role": "user", "content": "c"},
            ],
        },
    ),
    "answers and their fields": (
        "/completion",
        lambda n: {"prompt": "a", "n_predict": 1, "n_cmpl": 8, "response_fields": ["a/b"] * n},
    ),
}


def largest(kind: Kind) -> bytes:
    """The largest body of a kind that is small."""
    least, most = 1, 1 << 16
    while least < most:
        middle = (least + most + 1) // 2
        if is_small(json.dumps(kind(middle)).encode()):
            least = middle
        else:
            most = middle - 1
    return json.dumps(kind(least)).encode()


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Scene() as made:
        yield made


@pytest.mark.parametrize("name", KINDS)
def test_what_is_small_is_quick(name: str, scene: Scene) -> None:
    path, kind = KINDS[name]
    body = largest(kind)
    recipe = Recipe(name=name, path=path, body=json.loads(body))
    costs = [cost_of(recipe, scene).turn.seconds for _ in range(TRIES)]
    assert min(costs) <= TIMES * MOST_MS / 1000, f"{len(body)} bytes, {estimated_ms(body):.2f} ms"


def test_what_multiplies_is_not_small() -> None:
    """A body of half the bytes that a text may have is not small where its lists multiply."""
    prompts = ["a"] * 128
    words = ["q" * 8] * 256
    assert not is_small(json.dumps(_completion(prompts, bad_words=words)).encode())
    assert is_small(json.dumps(_completion("word " * 800)).encode())
