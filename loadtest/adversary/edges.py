"""Random requests at the edges of what may be asked for.

Where a new bound comes, it is one more entry of KINDS; everything else follows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
VOCABULARY = 49_152
"""The vocabulary of the default model. With a smaller one, requests that name an id are refused."""
FIRST_WORD, LAST_WORD = 1_000, 20_000
"""Ids of prompts: ordinary tokens."""
BEHAVIOURS = ("reads", "reads", "reads", "hangs up", "reads slowly")


@dataclass(frozen=True)
class Attack:
    """A request, and what its client does with the answer. hang_up: seconds until it leaves, if its
    behaviour is that."""

    kind: str
    behaviour: str
    path: str
    body: dict[str, Any]
    hang_up: float


Draw = random.Random
Maker = Callable[[Draw, int], dict[str, Any]]
"""The fields of a request, of a model with so large a context; a prompt where they have none."""


def attack(draw: Draw, context: int) -> Attack:
    """The next one."""
    kind = draw.choice(list(KINDS))
    fields = KINDS[kind](draw, context)
    path = CHAT if "messages" in fields else COMPLETIONS
    if path == COMPLETIONS:
        fields.setdefault("prompt", prompt(draw, draw.choice((1, 100, 1000))))
    fields.setdefault("max_tokens", draw.choice((1, 16, 128)))
    if draw.random() < 0.2:
        fields.setdefault("deadline_ms", draw.choice((1, 100, 2000, 20_000)))
    streams = not fields.get("use_beam_search") and "best_of" not in fields
    fields["stream"] = streams and draw.random() < 0.8
    hang_up = draw.choice((0.0, 0.01, 0.3, 3.0))
    return Attack(kind, draw.choice(BEHAVIOURS), path, fields, hang_up)


def prompt(draw: Draw, tokens: int) -> list[int]:
    """Token ids, like no other's."""
    return [draw.randint(FIRST_WORD, LAST_WORD) for _ in range(tokens)]


def _most(draw: Draw, context: int, tokens: int) -> dict[str, Any]:
    """A prompt that leaves room for just so many tokens."""
    return {"prompt": prompt(draw, context - tokens), "max_tokens": tokens}


def _ids(draw: Draw, count: int) -> list[int]:
    return draw.sample(range(VOCABULARY), count)


def _slow_grammar(draw: Draw) -> dict[str, Any]:
    """One that takes long to compile, or is refused for that; never the same twice."""
    salt = f"{draw.getrandbits(64):x}"
    wide = {
        "type": "object",
        "properties": {f"p{i}_{salt}": {"type": ["string", "null"]} for i in range(200)},
    }
    nested: dict[str, Any] = {"type": "integer", "multipleOf": draw.randint(900_000, 1_100_000)}
    for depth in range(30):
        nested = {"type": "object", "properties": {f"{salt}{depth}": nested}}
    kinds: list[dict[str, Any]] = [
        {"guided_regex": f"({salt}|[a-z]{{1,60}}|[0-9a-f]{{3,90}}){{1,60}}"},
        {"guided_regex": "(" * 40 + salt + ")?" * 40},
        {"guided_json": wide},
        {"guided_json": nested},
        {"guided_choice": [f"{salt} {i}" for i in range(1000)]},
    ]
    return draw.choice(kinds)


def _words(draw: Draw) -> list[str]:
    """Bad words of as many tokens as may be, which all begin alike."""
    letter = draw.choice("ab\N{PILE OF POO}")
    count = draw.choice((8, 64, 256))
    length = 256 if draw.random() < 0.5 else 8
    return [letter * (length - 3) + f"{i:03d}" for i in range(count)]


def _everything(draw: Draw, context: int) -> dict[str, Any]:
    return {
        "prompt": prompt(draw, context // 2),
        "n": 32,
        "max_tokens": 64,
        "bad_words": [f"word{i}" for i in range(200)],
        "logit_bias": {str(token): -1.0 for token in _ids(draw, 1000)},
        "allowed_token_ids": sorted(_ids(draw, VOCABULARY // 2)),
        "repetition_penalty": 1.3,
        "presence_penalty": 2,
        "logprobs": 20,
        "stop": ["never" * 200] * 16,
        "stop_token_ids": _ids(draw, 256),
        "min_tokens": 60,
    }


EQUAL_PROMPTS = 3
"""Different prompts of all requests that ask for the same again."""


def _equal(draw: Draw, context: int) -> dict[str, Any]:
    same = Draw(draw.randrange(EQUAL_PROMPTS))
    return {"prompt": prompt(same, context - 64), "max_tokens": 8, "n": draw.choice((1, 8))}


KINDS: dict[str, Maker] = {
    "longest prompt": lambda draw, context: _most(draw, context, draw.choice((1, 64))),
    "n=128, longest prompt": lambda draw, context: {**_most(draw, context, 8), "n": 128},
    "n=128, short": lambda draw, context: {"n": 128, "prompt": prompt(draw, 10), "max_tokens": 32},
    "beams": lambda draw, context: {
        "prompt": prompt(draw, draw.choice((10, context // 2))),
        "max_tokens": 12,
        "n": draw.choice((4, 128)),
        "use_beam_search": True,
    },
    "best_of": lambda draw, context: {"n": 1, "best_of": 128, "max_tokens": 32},
    "penalties": lambda draw, context: {
        **_most(draw, context, 128),
        "presence_penalty": 2,
        "frequency_penalty": -2,
        "repetition_penalty": 1.9,
    },
    "bad_words": lambda draw, context: {
        "bad_words": _words(draw),
        "n": draw.choice((1, 32)),
        "max_tokens": 64,
    },
    "logit_bias": lambda draw, context: {
        "logit_bias": {str(token): draw.uniform(-100, 100) for token in _ids(draw, 1024)},
        "n": draw.choice((1, 64)),
    },
    "allowed ids": lambda draw, context: {
        "allowed_token_ids": _ids(draw, draw.choice((1, 1000, VOCABULARY))),
        "n": draw.choice((1, 128)),
    },
    "grammar": lambda draw, context: _slow_grammar(draw),
    "logprobs": lambda draw, context: {"logprobs": 20, "n": 32, "max_tokens": 128},
    "chat logprobs": lambda draw, context: {
        "messages": [{"role": "user", "content": "again " * draw.choice((1, 1000))}],
        "logprobs": True,
        "top_logprobs": 20,
        "n": 16,
        "max_tokens": 128,
    },
    "prompt_logprobs": lambda draw, context: {
        **_most(draw, context, 4),
        "prompt_logprobs": draw.choice((0, 20)),
    },
    "echo": lambda draw, context: {**_most(draw, context, 4), "echo": True, "logprobs": 20},
    "stop strings": lambda draw, context: {
        "stop": ["ab" * 510 + f"{i:03d}" for i in range(16)],
        "n": 32,
        "max_tokens": 128,
    },
    "stop ids": lambda draw, context: {
        "stop_token_ids": _ids(draw, 256),
        "min_tokens": 100,
        "max_tokens": 128,
        "n": 32,
    },
    "deadline": lambda draw, context: {
        **_most(draw, context, 64),
        "deadline_ms": draw.choice((1, 10, 100, 1000)),
    },
    "equal prompts": _equal,
    "many prompts": lambda draw, context: {
        "prompt": [prompt(draw, 50) for _ in range(draw.choice((16, 128)))]
    },
    "no room": lambda draw, context: {
        "prompt": prompt(draw, context * draw.choice((1, 20))),
        "n": draw.choice((1, 128, 129)),
    },
    "everything": _everything,
}
