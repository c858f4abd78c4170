"""A request's output depends on the request alone: batch-invariant answers in bfloat16, alone,
together, and together while their worker is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loadtest.gpu.job import Job
from loadtest.gpu.model_folder import write_weights
from loadtest.gpu.workload import requests
from penstock.llm import AsyncLLM
from penstock.request.sampling_params import SamplingParams
from testing.descendants import descendants

WORKER = "penstock: worker"
LAST = 4.0
"""Seconds that are left when no further answer is asked for."""
Answers = list[list[int]]


def run(job: Job) -> None:
    asyncio.run(compare_large(job) if job.part.name == "promise-0" else compare(job))


async def compare(job: Job) -> None:
    """A small model's answers, also while its worker is killed."""
    name = job.extent.small[-1]
    config = job.extent.shape(name)
    asked = requests(job.extent.asked, 2, job.extent.short, config.vocab_size)
    prompts, length = [one.prompt for one in asked], job.extent.promised
    folder = write_weights(job.work / "promise" / name, config)
    async with served(job, name, folder, prompts, length, enable_prefix_caching=False) as llm:
        together = await answers(llm, prompts, length)
        alone = [(await answers(llm, [each], length))[0] for each in prompts]
        said(job, name, "alone", alone, together)
        job.need(5.0)
        killing = Killing(len(prompts) * length // 3)
        disturbed = await answers(llm, prompts, length, killing.count)
        if killing.dead is None:
            raise RuntimeError("no worker was there to be killed")
        said(job, name, "across a killed worker", disturbed, together)


async def compare_large(job: Job) -> None:
    """A large model's answers: alone with nothing in the cache, and together behind prompts that
    are."""
    extent, name = job.extent, job.model
    asked = requests(extent.promising, 2, extent.longest, job.config.vocab_size)
    prompts, length = [one.prompt for one in asked], extent.promising_tokens
    more = {"load_format": "dummy", "enable_prefix_caching": True}
    async with served(job, name, job.model_folder(), prompts, length, **more) as llm:
        together = await answers(llm, prompts, length)
        said(job, name, "behind cached prompts", await answers(llm, prompts, length), together)
        await llm.reset_prefix_cache()
        alone: Answers = []
        while len(alone) < len(prompts) and job.left > LAST:
            alone += await answers(llm, [prompts[len(alone)]], length)
        said(job, name, "alone", alone, together[: len(alone)])


@asynccontextmanager
async def served(
    job: Job, name: str, folder: Path, prompts: Answers, length: int, **more: Any
) -> AsyncIterator[AsyncLLM]:
    """Batch-invariant in bfloat16, with room for all of them at once."""
    longest = max(map(len, prompts)) + length
    begun = time.monotonic()
    async with AsyncLLM(
        model=str(folder),
        dtype="bfloat16",
        device=job.device.type,
        attention_backend="triton",
        batch_invariant=True,
        enforce_eager=job.extent.dry,
        max_model_len=longest,
        max_num_seqs=len(prompts),
        max_num_batched_tokens=max(job.extent.step_tokens, len(prompts)),
        num_kv_blocks=len(prompts) * (longest // 16 + 2),
        **more,
    ) as llm:
        job.row(what="start", model=name, seconds=time.monotonic() - begun)
        yield llm


def said(job: Job, name: str, how: str, found: Answers, together: Answers) -> None:
    unlike = [n for n, pair in enumerate(zip(found, together, strict=True)) if pair[0] != pair[1]]
    job.row(what="promise", model=name, how=how, answers=len(found), unlike=len(unlike))
    if unlike:
        first = unlike[0]
        job.fault(f"answer {first} {how}: {found[first]}, together: {together[first]}")


class Killing:
    """Kills the worker once, when `after` tokens have come."""

    def __init__(self, after: int) -> None:
        self._left = after
        self.dead: int | None = None

    def count(self) -> None:
        self._left -= 1
        if self._left <= 0 and self.dead is None:
            for process in descendants(WORKER):
                self.dead = process.pid
                process.kill()


async def answers(
    llm: AsyncLLM, prompts: Answers, length: int, came: Callable[[], None] = lambda: None
) -> Answers:
    """Token ids of each. came: called at every output of any."""
    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)

    async def one(prompt: list[int]) -> list[int]:
        got: list[int] = []
        async for output in llm.generate({"prompt_token_ids": prompt}, params):
            got = list(output.outputs[0].token_ids)
            came()
        if len(got) != length:
            raise RuntimeError(f"an answer has {len(got)} tokens instead of {length}")
        return got

    return list(await asyncio.gather(*map(one, prompts)))
