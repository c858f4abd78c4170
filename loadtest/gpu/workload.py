"""Requests of random lengths, as nano-vllm's public benchmark has them: prompts of random ids and
answers of a set length, both uniform."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """prompt: token ids.  output: tokens of its answer."""

    prompt: list[int]
    output: int


def requests(count: int, shortest: int, longest: int, vocab: int, seed: int = 0) -> list[Request]:
    """Lengths are uniform in [shortest, longest]; the first of them are the same for any count."""
    lengths, tokens = random.Random(seed), random.Random(seed + 1)
    made = []
    for _ in range(count):
        size, output = lengths.randint(shortest, longest), lengths.randint(shortest, longest)
        made.append(Request([tokens.randrange(1, vocab) for _ in range(size)], output))
    return made


def prompt_tokens(some: list[Request]) -> int:
    return sum(len(one.prompt) for one in some)


def output_tokens(some: list[Request]) -> int:
    return sum(one.output for one in some)
