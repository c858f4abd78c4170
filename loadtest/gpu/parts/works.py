"""Whether it works at all, in three minutes: whole systems token by token beside the reference on
this machine's processor, then a model of each mechanism, kernel for kernel, beside it too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.gpu.job import Job
from loadtest.gpu.model_folder import write_weights
from loadtest.gpu.parts.kernel_tests import run_tests
from loadtest.gpu.workload import requests
from penstock.llm import LLM
from penstock.request.sampling_params import SamplingParams

REFERENCE = {"device": "cpu", "attention_backend": "reference"}


def run(job: Job) -> None:
    for name in job.extent.small:
        job.need()
        with job.attempt(f"{name}'s tokens"):
            compare(job, name, write_weights(job.work / "works" / name, job.extent.shape(name)))
    if job.part.name == "works":
        run_tests(job, job.extent.works)


def compare(job: Job, name: str, folder: Path) -> None:
    """Greedy answers in float32, several at once: chunks, mixed steps, and decodes by graphs."""
    vocab = job.extent.shape(name).vocab_size
    prompts = [one.prompt for one in requests(job.extent.asked, 2, job.extent.short, vocab)]
    device = {"device": job.device.type, "attention_backend": "triton"}
    true, found = (answers(folder, prompts, job, **each) for each in (REFERENCE, device))
    pairs = [pair for pair in zip(true, found, strict=True) if pair[0] != pair[1]]
    job.row(what="tokens", model=name, answers=len(true), unlike=len(pairs))
    if pairs:
        job.fault(f"{name}: the reference says {pairs[0][0]}, this device {pairs[0][1]}")


def answers(folder: Path, prompts: list[list[int]], job: Job, **chosen: Any) -> list[list[int]]:
    """Token ids of each."""
    params = SamplingParams(temperature=0.0, max_tokens=job.extent.short, ignore_eos=True)
    with LLM(
        model=str(folder),
        dtype="float32",
        max_model_len=4 * job.extent.short,
        max_num_seqs=len(prompts),
        max_num_batched_tokens=job.extent.short + len(prompts),
        num_kv_blocks=4 * len(prompts) * job.extent.short,
        **chosen,
    ) as llm:
        asked = [{"prompt_token_ids": each} for each in prompts]
        outputs = llm.generate(asked, params, use_tqdm=False)
    return [list(each.outputs[0].token_ids) for each in outputs]
