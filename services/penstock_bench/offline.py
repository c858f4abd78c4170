"""Latency and throughput of the library: one engine, no HTTP, every prompt another one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidRequest
from penstock_bench.quantile import quantile

if TYPE_CHECKING:
    from penstock.llm import LLM

FIRST_ID = 100
"""Ids below are special tokens in many vocabularies."""
QUANTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True)
class BatchShape:
    """input_len, output_len: tokens of each prompt and answer.  seed: of the prompts."""

    input_len: int
    output_len: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be at least 1, not {getattr(self, name)}")


def measure_latency(
    llm: LLM,
    shape: BatchShape,
    *,
    batch_size: int,
    warmup: int,
    iterations: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Seconds that a batch takes, from the call to the last token; `iterations` of them.

    tick: called after each.  Raises InvalidRequest for a shape that the model has no room for.
    """
    _at_least(batch_size=batch_size, iterations=iterations)
    rng = random.Random(shape.seed)
    seconds = []
    for number in range(warmup + iterations):
        prompts = _prompts(llm, shape, batch_size, rng)
        begun = time.perf_counter()
        _generate(llm, shape, prompts)
        if number >= warmup:
            seconds.append(time.perf_counter() - begun)
        tick()
    ordered = sorted(seconds)
    return {
        "batch_size": batch_size,
        "input_len": shape.input_len,
        "output_len": shape.output_len,
        "iterations": iterations,
        "mean_s": sum(seconds) / len(seconds),
        **{f"p{q}_s": quantile(ordered, q / 100) for q in QUANTILES},
        "output_tokens_per_s": batch_size * shape.output_len * len(seconds) / sum(seconds),
    }


def measure_throughput(llm: LLM, shape: BatchShape, *, num_prompts: int) -> dict[str, Any]:
    """All prompts given at once: how fast they are done. Raises as measure_latency."""
    _at_least(num_prompts=num_prompts)
    rng = random.Random(shape.seed)
    _generate(llm, shape, _prompts(llm, shape, 1, rng))  # What is made once is not measured.
    prompts = _prompts(llm, shape, num_prompts, rng)
    begun = time.perf_counter()
    outputs = _generate(llm, shape, prompts)
    seconds = time.perf_counter() - begun
    tokens_in = sum(len(one.prompt_token_ids) for one in outputs)
    tokens_out = sum(len(one.outputs[0].token_ids) for one in outputs)
    return {
        "num_prompts": num_prompts,
        "input_len": shape.input_len,
        "output_len": shape.output_len,
        "seconds": seconds,
        "requests_per_s": num_prompts / seconds,
        "total_tokens_per_s": (tokens_in + tokens_out) / seconds,
        "output_tokens_per_s": tokens_out / seconds,
        "prompt_tokens": tokens_in,
        "output_tokens": tokens_out,
    }


def _prompts(llm: LLM, shape: BatchShape, count: int, rng: random.Random) -> list[Any]:
    size = llm.get_tokenizer().vocab_size
    first = min(FIRST_ID, size - 1)
    return [
        {"prompt_token_ids": [rng.randrange(first, size) for _ in range(shape.input_len)]}
        for _ in range(count)
    ]


def _generate(llm: LLM, shape: BatchShape, prompts: list[Any]) -> list[Any]:
    from penstock.request.sampling_params import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=shape.output_len, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    short = [one for one in outputs if len(one.outputs[0].token_ids) != shape.output_len]
    if short:
        got = len(short[0].outputs[0].token_ids)
        raise InvalidRequest(
            f"an answer had {got} tokens, not {shape.output_len}: the model's context has no room "
            "for more after such a prompt"
        )
    return outputs


def _at_least(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InvalidRequest(f"{name} must be at least 1, not {count}")
