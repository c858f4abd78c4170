"""The requests: every way of asking whose answer must not depend on what happens meanwhile.

Where a new way comes, it is one more entry of KINDS; everything else follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STREAMS = 32

_SUBJECTS = ("rivers", "clocks", "bread", "the moon", "trains", "glass", "maps", "winter")


@dataclass(frozen=True)
class Request:
    """One entry of the mix."""

    name: str
    path: str
    body: dict[str, Any]
    choices: int = 1  # that its answer has


def _completion(number: int) -> dict[str, Any]:
    return {"prompt": f"{number} things about {_SUBJECTS[number % 8]}:"}


def _chat(number: int) -> dict[str, Any]:
    text = f"Tell me {number} things about {_SUBJECTS[number % 8]}."
    return {"messages": [{"role": "user", "content": text}]}


LIST = {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 200}
"""Longer than the answer may be."""

Maker = Callable[[int], dict[str, Any]]

KINDS: dict[str, tuple[Maker, Maker]] = {
    "greedy": (_completion, lambda n: {"temperature": 0}),
    "seeded": (_chat, lambda n: {"temperature": 0.9, "top_p": 0.95, "seed": n}),
    # Long ones that nearly match, so that text is held back; and one that will be met.
    "stop": (
        _chat,
        lambda n: {
            "temperature": 1.0,
            "seed": n,
            "stop": ["and the and", "\n\n\n", f" {n} {n}", "ing o"],
        },
    ),
    "logprobs": (_completion, lambda n: {"temperature": 0.7, "seed": n, "logprobs": 3}),
    "n=2": (_completion, lambda n: {"temperature": 1.0, "seed": n, "n": 2}),
    "penalties": (
        _completion,
        lambda n: {
            "temperature": 0.9,
            "seed": n,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.4,
            "repetition_penalty": 1.1,
            "logit_bias": {"28": -2, "30": 1.5},
            "bad_words": ["the", "and"],
        },
    ),
    "json schema": (
        _chat,
        lambda n: {
            "temperature": 1.0,
            "seed": n,
            "ignore_eos": False,  # What has a grammar can't ignore EOS.
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "things", "strict": True, "schema": LIST},
            },
        },
    ),
    "chat logprobs, n=2": (
        _chat,
        lambda n: {"temperature": 0.8, "seed": n, "n": 2, "logprobs": True, "top_logprobs": 2},
    ),
}
"""What is asked and how, of the request with that number, by name."""


def mix(tokens: int, size: int = STREAMS) -> list[Request]:
    """`size` different requests of `tokens` tokens, the kinds in turn."""
    common = {
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    requests = []
    kinds = list(KINDS.items())
    for number in range(size):
        name, (prompt, fields) = kinds[number % len(kinds)]
        body = {**prompt(number), **common, **fields(number)}
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        requests.append(Request(f"{number} {name}", path, body, body.get("n", 1)))
    return requests
