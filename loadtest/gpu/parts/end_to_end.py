"""All the way: the library, an engine core and a worker, each a process, over requests of random
lengths that come at once."""

from __future__ import annotations

import time
import urllib.request
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from deploy.local import free_port
from loadtest.gpu.job import Job
from loadtest.gpu.workload import TEMPERATURE, Request, requests, run_row
from penstock.llm import LLM
from penstock.request.sampling_params import SamplingParams

SETTLED = 0.3
"""Seconds before a page is asked for: the port gives the last one again to who asks sooner."""


def run(job: Job) -> None:
    extent, vocab = job.extent, job.config.vocab_size
    some = requests(max(extent.requests), extent.shortest, extent.longest, vocab)
    ports = Ports(free_port(), free_port())
    asked = settings(job, ports)
    begun = time.monotonic()
    with LLM(**asked) as llm:
        job.row(model=job.model, what="start", seconds=time.monotonic() - begun)
        generate(llm, warm_up(job))
        for count in extent.requests:
            job.need(2.0)
            measure(job, llm, some[:count], ports)


@dataclass(frozen=True)
class Ports:
    """Ports of the metrics of engine core and worker."""

    engine: int
    worker: int


def warm_up(job: Job) -> list[Request]:
    """Prompts of the measured lengths, all at once, and short answers: the libraries choose their
    kernels by shape when they first meet one. Ours are compiled by then, and graphs captured."""
    extent = job.extent
    some = requests(extent.served, extent.shortest, extent.longest, job.config.vocab_size, seed=7)
    most = max(extent.longest // 16, 1)
    return [Request(one.prompt, min(one.output, most)) for one in some]


def settings(job: Job, ports: Ports) -> dict[str, Any]:
    extent = job.extent
    return {
        "model": str(job.model_folder()),
        "dtype": "bfloat16",
        "load_format": "dummy",
        "device": job.device.type,
        "attention_backend": "triton",
        "max_model_len": 2 * extent.longest,
        "max_num_seqs": extent.served,
        "max_num_batched_tokens": extent.step_tokens,
        "engine_metrics_port": ports.engine,
        "worker_metrics_port": ports.worker,
        # The same prompts come again among more.
        "enable_prefix_caching": False,
        **({"num_kv_blocks": 64} if extent.dry else {}),
    }


def measure(job: Job, llm: LLM, some: list[Request], ports: Ports) -> None:
    before, late = read_counters(ports.engine), late_compilations(read_page(ports.worker))
    begun = time.perf_counter()
    generate(llm, some)
    seconds = time.perf_counter() - begun
    after = read_counters(ports.engine)
    grown = {name: value - before[name] for name, value in after.items()}
    late = late_compilations(read_page(ports.worker)) - late
    if late:
        job.fault(f"{late} kernels were compiled in the measured time: the rehearsal lacks them")
    run_row(job, "penstock", some, seconds, engine_core=grown, late_compilations=late)


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


def late_compilations(page: str) -> int:
    """Kernels that the worker has compiled since its model was ready. Raises LookupError for a page
    that doesn't say."""
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "penstock:worker_late_compilations_total":
                return int(sample.value)
    raise LookupError("the worker's metrics page doesn't count compilations")


def read_counters(port: int) -> dict[str, float]:
    return step_counters(read_page(port))


def read_page(port: int) -> str:
    time.sleep(SETTLED)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        return str(reply.read().decode())
