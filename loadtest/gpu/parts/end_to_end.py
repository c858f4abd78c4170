"""All the way: the library, an engine core and a worker, each a process, over requests of random
lengths that come at once."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from deploy.local import free_port
from loadtest.gpu.job import Job
from loadtest.gpu.workload import TEMPERATURE, Request, requests, run_row
from penstock.llm import LLM
from penstock.sampling_params import SamplingParams

SETTLED = 0.3
"""Seconds before a page is asked for: the port gives the last one again to who asks sooner."""


def run(job: Job) -> None:
    extent, vocab = job.extent, job.config.vocab_size
    some = requests(extent.requests, extent.shortest, extent.longest, vocab)
    port = free_port()
    asked = settings(job, port)
    begun = time.monotonic()
    with LLM(**asked) as llm:
        job.row(model=job.model, what="start", seconds=time.monotonic() - begun)
        # Short ones of many lengths, so that every batch size is met once: kernels are compiled
        # and graphs captured when they are first needed.
        generate(llm, requests(extent.requests, 1, max(extent.longest // 16, 2), vocab, seed=7))
        for chosen in (some, some[: extent.subset]):
            job.need(2.0)
            measure(job, llm, chosen, port)


def settings(job: Job, port: int) -> dict[str, Any]:
    extent = job.extent
    return {
        "model": str(job.model_folder()),
        "dtype": "bfloat16",
        "load_format": "dummy",
        "device": job.device.type,
        "attention_backend": "triton",
        "max_model_len": 2 * extent.longest,
        "max_num_seqs": extent.requests,
        "max_num_batched_tokens": extent.step_tokens,
        "engine_metrics_port": port,
        # The subset's prompts have been computed before.
        "enable_prefix_caching": False,
        **({"num_kv_blocks": 64} if extent.dry else {}),
    }


def measure(job: Job, llm: LLM, some: list[Request], port: int) -> None:
    before = read_counters(port)
    begun = time.perf_counter()
    generate(llm, some)
    seconds = time.perf_counter() - begun
    after = read_counters(port)
    grown = {name: value - before[name] for name, value in after.items()}
    run_row(job, "penstock", some, seconds, engine_core=grown)


def generate(llm: LLM, some: list[Request]) -> None:
    """Raises RuntimeError where an answer has another length than was asked for."""
    params = [
        SamplingParams(temperature=TEMPERATURE, max_tokens=one.output, ignore_eos=True)
        for one in some
    ]
    prompts = [{"prompt_token_ids": one.prompt} for one in some]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for one, output in zip(some, outputs, strict=True):
        got = output.outputs[0]
        if len(got.token_ids) != one.output:
            raise RuntimeError(
                f"an answer has {len(got.token_ids)} tokens instead of {one.output}: "
                f"{got.finish_reason} {got.error or ''}"
            )


def step_counters(page: str) -> dict[str, float]:
    """What an engine core's metrics page counts since it began: `steps`, and seconds of them:
    `plan` and `apply` of its own work, `compute` of the worker's, `dispatch` that they took beyond
    that.

    Raises LookupError for a page without these counters.
    """
    found = {
        sample.labels.get("part", "steps"): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in ("penstock:steps_total", "penstock:step_part_seconds_total")
    }
    try:
        return {name: found[name] for name in ("steps", "plan", "apply", "compute", "dispatch")}
    except KeyError as error:
        raise LookupError(f"the metrics page has no counters of steps: {error}") from None


def read_counters(port: int) -> dict[str, float]:
    time.sleep(SETTLED)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        return step_counters(reply.read().decode())
