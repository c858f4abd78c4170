"""All the way: requests of random lengths that come at once, to an engine core and a worker, by the
library, and by a gateway as streams of events. Both ask the same engine core."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from deploy.local import free_port
from loadtest.gpu.job import Job
from loadtest.gpu.workload import TEMPERATURE, Request, requests, run_row
from loadtest.report import ROOT
from penstock.llm import LLM
from penstock.request.sampling_params import SamplingParams
from testing.serving import Server

SETTLED = 0.3
"""Seconds before a page is asked for: the port gives the last one again to who asks sooner."""
Way = Callable[[list[Request]], float]
"""Has requests computed; returns the seconds that it took."""


def run(job: Job) -> None:
    extent = job.extent
    ports = Ports(free_port(), free_port())
    begun = time.monotonic()
    # Short, as the address of a Unix socket has to be.
    with (
        tempfile.TemporaryDirectory(prefix="e2e-") as folder,
        Server(*arguments(job, ports, f"ipc://{folder}/engine")) as server,
        LLM(engine_endpoint=f"ipc://{folder}/engine") as llm,
    ):
        job.row(model=job.model, what="start", seconds=time.monotonic() - begun)
        ways: dict[str, Way] = {
            "penstock, library": lambda some: by_library(llm, some),
            "penstock, SSE": lambda some: by_streams(job, server, some),
        }
        by_library(llm, warm_up(job))
        for count, longest in zip(extent.requests, extent.longest_of, strict=True):
            some = requests(count, extent.shortest, longest, job.config.vocab_size)
            for name, way in ways.items():
                job.need(2.0)
                measure(job, name, way, some, ports)


@dataclass(frozen=True)
class Ports:
    """Ports of the metrics of engine core and worker."""

    engine: int
    worker: int


def warm_up(job: Job) -> list[Request]:
    """Prompts of the measured lengths, all at once, and short answers: the libraries choose their
    kernels by shape when they first meet one. Ours are compiled by then, and graphs captured."""
    extent = job.extent
    longest = max(extent.longest_of)
    some = requests(extent.served, extent.shortest, longest, job.config.vocab_size, seed=7)
    most = max(longest // 16, 1)
    return [Request(one.prompt, min(one.output, most)) for one in some]


def arguments(job: Job, ports: Ports, endpoint: str) -> list[str]:
    """Returns the arguments of `penstock serve`."""
    extent = job.extent
    given = {
        "dtype": "bfloat16",
        "load-format": "dummy",
        "device": job.device.type,
        "attention-backend": "triton",
        "max-model-len": 2 * max(extent.longest_of),
        "max-num-seqs": extent.served,
        "max-num-batched-tokens": extent.step_tokens,
        "engine-metrics-port": ports.engine,
        "worker-metrics-port": ports.worker,
        "frontend-endpoint": endpoint,
        "speculative-config": "off",
        **({"num-kv-blocks": 64} if extent.dry else {}),
    }
    flags = [f"--{name}={value}" for name, value in given.items()]
    flags += ["--enforce-eager"] if extent.dry else []
    # The same prompts come again, by the other way and among more.
    return [str(job.model_folder()), *flags, "--no-enable-prefix-caching"]


def by_streams(job: Job, server: Server, some: list[Request]) -> float:
    """Returns the seconds of a client in a process of its own. Raises RuntimeError where a stream
    didn't end as it should."""
    file = job.work / "asked.json"
    file.write_text(json.dumps([[one.prompt, one.output] for one in some]))
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "loadtest.gpu.sse", port, server.model, str(file)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError("the client of the streams failed; the log says more")
    found = json.loads(done.stdout)
    if found["tokens"] != sum(one.output for one in some):
        raise RuntimeError(f"the streams had {found['tokens']} tokens")
    return float(found["seconds"])


def measure(job: Job, name: str, way: Way, some: list[Request], ports: Ports) -> None:
    before, late = read_counters(ports.engine), late_compilations(read_page(ports.worker))
    seconds = way(some)
    after = read_counters(ports.engine)
    grown = {name: value - before[name] for name, value in after.items()}
    late = late_compilations(read_page(ports.worker)) - late
    if late:
        job.fault(f"{late} kernels were compiled in the measured time: the rehearsal lacks them")
    run_row(job, name, some, seconds, engine_core=grown, late_compilations=late)


def by_library(llm: LLM, some: list[Request]) -> float:
    """Returns seconds. Raises RuntimeError where an answer has another length than was asked
    for."""
    begun = time.perf_counter()
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
    return time.perf_counter() - begun


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
