"""transformers' generate and its continuous batching, on the same device with the same shapes and
the first of the same requests, each within a time."""

from __future__ import annotations

import time
from typing import Any

import torch

from loadtest.gpu.job import Job
from loadtest.gpu.workload import TEMPERATURE, Request, output_tokens, requests, run_row

ATTENTION = "sdpa"
BLOCK = 64
"""Tokens of a block of continuous batching's cache."""
SHARE = 0.4
"""The share of the part's time, at most, for each of the two."""


def run(job: Job) -> None:
    extent, vocab = job.extent, job.config.vocab_size
    some = requests(extent.subset, extent.shortest, extent.longest, vocab)
    begun = time.monotonic()
    model = random_model(str(job.model_folder()), job.device)
    job.row(model=job.model, what="load", seconds=time.monotonic() - begun)
    seconds = SHARE * job.left
    with job.attempt("continuous batching", own=False):
        continuous(job, model, some, seconds)
    with job.attempt("generate", own=False):
        # Continuous batching puts a paged one in its place, which stays there if it fails.
        model.set_attn_implementation(ATTENTION)
        together(job, model, some, min(seconds, job.left - 2))


def random_model(folder: str, device: torch.device) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=ATTENTION
        )
    return model.eval()


def sampling(**more: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        pad_token_id=0,
        # No token has this id: an answer ends at its length.
        eos_token_id=-1,
        **more,
    )


def together(job: Job, model: Any, some: list[Request], seconds: float) -> None:
    """generate: one batch, padded on the left, until the longest answer is whole or the time is
    over.  A token counts while its own request still wanted one."""
    longest = max(len(one.prompt) for one in some)
    ids = torch.zeros(len(some), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, one in enumerate(some):
        ids[row, longest - len(one.prompt) :] = torch.tensor(one.prompt)
        mask[row, longest - len(one.prompt) :] = 1
    ids, mask = ids.to(job.device), mask.to(job.device)
    most = max(one.output for one in some)

    def generate(tokens: int, limit: float) -> int:
        asked = sampling(max_new_tokens=tokens, max_time=limit)
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, generation_config=asked)
        return int(out.shape[1]) - longest

    generate(2, seconds)
    begun = time.perf_counter()
    made = generate(most, seconds)
    took = time.perf_counter() - begun
    tokens = sum(min(one.output, made) for one in some)
    run_row(job, "transformers generate", some, took, output_tokens=tokens, whole=made == most)


def continuous(job: Job, model: Any, some: list[Request], seconds: float) -> None:
    """Continuous batching. Of a run that the time cut short, whole answers count only."""
    from transformers import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.utils import WorkloadHints

    extent, vocab = job.extent, job.config.vocab_size
    others = requests(len(some), extent.shortest, extent.longest, vocab, seed=7)
    hints = WorkloadHints(
        max_prompt_length=max(len(one.prompt) for one in some),
        max_generated_length=max(one.output for one in some),
        num_requests=len(some),
    )
    with model.continuous_batching_context_manager(
        generation_config=sampling(),
        # Sized for these requests: left to itself it takes all memory, and masks as large as that.
        continuous_batching_config=ContinuousBatchingConfig(
            block_size=BLOCK,
            num_blocks=sum(-(-(len(one.prompt) + one.output) // BLOCK) + 1 for one in some),
            max_batch_tokens=extent.step_tokens,
            max_requests_per_batch=len(some),
            allow_block_sharing=False,
        ),
        workload_hints=hints,
        timeout=5,
    ) as manager:
        answer(manager, [Request(one.prompt, 2) for one in others], seconds)
        begun = time.perf_counter()
        made = answer(manager, some, seconds)
        took = time.perf_counter() - begun
    whole = made == output_tokens(some)
    run_row(job, "transformers continuous batching", some, took, output_tokens=made, whole=whole)


def answer(manager: Any, some: list[Request], seconds: float) -> int:
    """Tokens of the answers that were whole within the time. Raises RuntimeError where one
    failed."""
    ends = time.perf_counter() + seconds
    for one in some:
        manager.add_request(one.prompt, max_new_tokens=one.output, eos_token_id=-1)
    made, waiting = 0, len(some)
    while waiting and time.perf_counter() < ends and manager.is_running():
        output = manager.get_result(timeout=0.5)
        if output is None or not output.is_finished():
            continue
        if output.error is not None:
            raise RuntimeError(output.error)
        made += len(output.generated_tokens)
        waiting -= 1
    return made
