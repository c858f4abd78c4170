"""On the CPU kernels, the logprobs of every generated token are the same bits at every batch size,
chunk size, block size and thread count, and after preemption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.model.prepared_model import PreparedModel
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import GREEDY, Driver, Job, make_runner
from tests.worker.forward.test_bit_identity import SAMPLED, company, prompt
from tests.worker.forward.test_cpu_forward import BASE

WAYS = [
    # batch, budget, block size, preempted every so many steps, threads
    (1, 16, 32, 0, 2),
    (1, 64, 48, 7, 1),
    (2, 64, 16, 0, 1),
    (7, 16, 48, 13, 2),
    (7, 512, 32, 0, 1),
    (64, 64, 16, 4, 2),
    (64, 512, 48, 6, 1),
    (64, 2048, 32, 0, 2),
]
"""2,048: no prompt is ever cut."""


@pytest.fixture(
    scope="module",
    params=["default, quantised", "tiny, bfloat16", "tiny, int8", "tiny, int8 in two parts"],
)
def model(
    request: pytest.FixtureRequest,
    default_model: PreparedModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> CPUModel:
    return make_model(request.param, default_model, tmp_path_factory)


def make_model(
    name: str, default_model: PreparedModel, tmp_path_factory: pytest.TempPathFactory
) -> CPUModel:
    if name == "tiny, bfloat16":
        return CPUModel(BASE, tiny_files(tmp_path_factory.mktemp("tiny"), BASE), "bfloat16")
    if name.startswith("tiny, int8"):
        files = tiny_files(tmp_path_factory.mktemp("tiny"), BASE)
        model = CPUModel(BASE, files, "auto", kv_cache_dtype="int8", quantization="int8")
        return replace(model, matmul_precision="high") if "two parts" in name else model
    return CPUModel(default_model.config, default_model.weights, "auto")


def targets(model: CPUModel, count: int) -> list[Job]:
    lengths, samplings = (70, 17), (GREEDY, SAMPLED)
    return [Job(prompt(model, lengths[n], n), 12, samplings[n]) for n in range(count)]


@pytest.fixture(scope="module")
def alone(model: CPUModel) -> list[Job]:
    return each_alone(model)


def each_alone(model: CPUModel) -> list[Job]:
    """Each by itself, its prompt in one chunk, on one thread."""
    runner = make_runner(model)
    jobs = []
    for job in targets(model, 2):
        jobs += Driver(runner).run([job])
        runner.reset()
    assert jobs[0].tokens != jobs[1].tokens
    return jobs


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("batch", "budget", "block_size", "preempt_every", "threads"),
    WAYS,
    ids=lambda value: str(value),
)
def test_every_bit_of_logprobs(
    model: CPUModel,
    alone: list[Job],
    batch: int,
    budget: int,
    block_size: int,
    preempt_every: int,
    threads: int,
) -> None:
    check(model, alone, batch, budget, block_size, preempt_every, threads)


def check(
    model: CPUModel,
    alone: list[Job],
    batch: int,
    budget: int,
    block_size: int,
    preempt_every: int,
    threads: int,
) -> None:
    """Bits in this company are those of each alone."""
    ours = targets(model, min(batch, 2))
    others = company(model, batch - len(ours), 40)
    runner = make_runner(model, block_size=block_size, threads=threads, num_blocks=300)
    cache = "bfloat16" if model.kv_cache_dtype == "auto" else model.kv_cache_dtype
    assert runner._kind._forward._decoder.cache == cache
    driver = Driver(
        runner,
        block_size=block_size,
        num_blocks=300,
        budget=budget,
        preempt_every=preempt_every,
        seed=budget,
    )
    driver.run(ours + others)
    for job, expected in zip(ours, alone, strict=False):
        assert job.tokens == expected.tokens
        assert job.logprobs == expected.logprobs
    assert not preempt_every or any(job.preempted for job in ours + others)
