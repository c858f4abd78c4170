"""Requests of random lengths, as nano-vllm's public benchmark has them: prompts of random ids and
answers of a set length, both uniform."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from loadtest.gpu.job import Job

TEMPERATURE = 0.6


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


def output_tokens(some: list[Request]) -> int:
    return sum(one.output for one in some)


def run_row(job: Job, system: str, some: list[Request], seconds: float, **more: Any) -> None:
    """more: `output_tokens` where not all answers are whole, and what else is known."""
    figures = {
        "requests": len(some),
        "prompt_tokens": sum(len(one.prompt) for one in some),
        "output_tokens": output_tokens(some),
        "seconds": seconds,
    }
    job.row(model=job.model, what="run", system=system, **(figures | more))
