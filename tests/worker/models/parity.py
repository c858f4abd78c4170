"""Comparison of a model with transformers on the same weights, in float32.

transformers gets prompt and answer in one forward pass.  By induction that is the comparison of
greedy decoding: as long as our tokens are its argmax at each step, it would have been given them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock_worker.models.decoder import DecoderModel
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import Driver, Job, LogitsOf, make_runner

RELATIVE_TOLERANCE = 2e-4
CLEAR_MARGIN = 1e-3


def run_with_logits(
    model: DecoderModel | CPUModel, prompts: list[list[int]], wanted: int
) -> list[tuple[Job, torch.Tensor]]:
    """Our greedy tokens, all prompts in one batch, and every computed position's logits."""
    seen = LogitsOf()
    longest = max(map(len, prompts)) + wanted
    groups = len(model.recipe().kv_groups) if isinstance(model, CPUModel) else 1
    blocks = groups * sum(-(-(len(prompt) + wanted) // 16) for prompt in prompts)
    runner = make_runner(
        model,
        num_blocks=blocks,
        slots=len(prompts),
        max_tokens=longest,
        threads=2,
        observer=seen,
    )
    driver = Driver(runner, num_blocks=blocks, slots=len(prompts), budget=512)
    jobs = [Job(prompt, wanted) for prompt in prompts]
    return run_recorded(driver, jobs, seen)


def run_recorded(driver: Driver, jobs: list[Job], seen: LogitsOf) -> list[tuple[Job, torch.Tensor]]:
    """Runs the jobs as one batch. Returns each with every logit that `seen` has of it, [tokens,
    vocab]."""
    slots: dict[int, int] = {}
    while any(not job.done for job in jobs):
        driver._step([job for job in jobs if not job.done])
        slots |= {at: job.slot for at, job in enumerate(jobs) if job.slot is not None}
    return [(job, seen.of(slots[at])) for at, job in enumerate(jobs)]


def compare_answer(
    ours: torch.Tensor,
    true: torch.Tensor,
    prompt: int,
    answer: Sequence[int],
    tolerance: float = RELATIVE_TOLERANCE,
) -> int:
    """Asserts that the logits of the first `prompt` tokens are equal within the tolerance, and that
    each token of the answer is transformers' choice, up to the first that is not clear. ours, true:
    [tokens, vocab]. Returns how many tokens of the answer were compared."""
    difference = (ours[:prompt] - true[:prompt]).abs().amax(-1)
    allowed = tolerance * true[:prompt].abs().amax(-1)
    assert bool((difference <= allowed).all()), (prompt, (difference / allowed).max())
    for step, token in enumerate(answer):
        best = true[prompt - 1 + step].topk(2)
        if best.values[0] - best.values[1] < CLEAR_MARGIN:
            return step
        assert token == int(best.indices[0]), (prompt, step)
    return len(answer)


def compare(
    model: DecoderModel | CPUModel, theirs: Any, prompts: list[list[int]], wanted: int
) -> int:
    """Asserts equality of all prompts; returns how many greedy tokens were compared."""
    compared = 0
    for job, ours in run_with_logits(model, prompts, wanted):
        assert job.error is None
        with torch.inference_mode():
            given = torch.tensor([job.prompt + job.tokens])
            true = theirs(given).logits[0, : len(ours)].float()
        compared += compare_answer(ours, true, len(job.prompt), job.tokens)
    return compared
