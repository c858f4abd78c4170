"""A request's tokens, logprobs and logits are the same bits, whatever happens around it."""

from __future__ import annotations

import random

import pytest
import torch

from penstock.protocol.common import TokenSampling
from penstock_worker.models.decoder import DecoderModel
from tests.thinning import part
from tests.worker.driver import GREEDY, Driver, Job, LogitsOf, make_runner

SAMPLED = TokenSampling(2**63 + 5, temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, logprobs=5)


def run(
    model: DecoderModel,
    jobs: list[Job],
    *,
    block_size: int = 16,
    num_blocks: int = 512,
    threads: int = 1,
    **knobs: int,
) -> list[Job]:
    runner = make_runner(model, block_size=block_size, num_blocks=num_blocks, threads=threads)
    return Driver(runner, block_size=block_size, num_blocks=num_blocks, **knobs).run(jobs)


def prompt(model: DecoderModel, length: int, seed: int) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(model.config.vocab_size) for _ in range(length)]


def company(model: DecoderModel, count: int, longest: int) -> list[Job]:
    """Jobs of mixed lengths and sampling."""
    choose = random.Random(99)
    return [
        Job(
            prompt(model, choose.randint(1, longest), 1000 + n),
            choose.randint(1, 12),
            TokenSampling(n, temperature=1.5, top_p=0.9) if n % 2 else GREEDY,
        )
        for n in range(count)
    ]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_alone_or_disturbed(tiny: DecoderModel, sampling: TokenSampling) -> None:
    """Among others, with each block size, budget and thread count, with preemptions."""
    lengths = [1, 15, 16, 33, 130]
    wanted = 24

    def targets() -> list[Job]:
        return [Job(prompt(tiny, n, n), wanted, sampling, index=n % 3) for n in lengths]

    alone = [run(tiny, [job])[0] for job in targets()]
    assert len({tuple(job.tokens) for job in alone}) == len(alone)
    preempted = 0
    for block_size, budget, preempt_every, threads in (
        (1, 64, 0, 1),
        (16, 16, 0, 2),
        (16, 64, 5, 1),
        (32, 2048, 3, 3),
        (1, 2048, 4, 2),
    ):
        jobs = targets() + company(tiny, part(32, 1 / 2), 100)
        run(
            tiny,
            jobs,
            block_size=block_size,
            num_blocks=8192 // block_size,
            budget=budget,
            preempt_every=preempt_every,
            threads=threads,
            seed=budget,
        )
        for ours, other in zip(jobs, alone, strict=False):
            assert ours.tokens == other.tokens, (block_size, budget)
            assert ours.logprobs == other.logprobs, (block_size, budget)
            preempted += ours.preempted
    assert preempted > 0


@pytest.mark.timeout(240)
def test_logits_of_every_position(tiny: DecoderModel) -> None:
    """Chunks of any size, alone or not, give each position the same logits."""
    target = prompt(tiny, 150, 7)

    def logits(budget: int, block_size: int, others: int) -> torch.Tensor:
        seen = LogitsOf()
        runner = make_runner(tiny, block_size=block_size, num_blocks=8192, observer=seen)
        job = Job(target, 1)
        jobs = [job, *company(tiny, others, 40)]
        slot_of: dict[int, int] = {}
        driver = Driver(runner, block_size=block_size, num_blocks=8192, budget=budget, seed=3)
        while not job.done:
            driver._step([each for each in jobs if not each.done])
            if job.slot is not None:
                slot_of[0] = job.slot
        return seen.of(slot_of[0])

    whole = logits(2048, 16, 0)
    assert whole.shape == (150, tiny.config.vocab_size)
    for budget, block_size, others in (
        (1, 16, 0),
        (7, 1, 0),
        (16, 32, 3),
        (64, 7, 8),
        (149, 16, 0),
    ):
        assert torch.equal(logits(budget, block_size, others), whole), (budget, block_size, others)


@pytest.mark.timeout(240)
def test_resumed_elsewhere(tiny: DecoderModel) -> None:
    """A sequence admitted with half of its output goes on as if never interrupted."""
    (whole,) = run(tiny, [Job(prompt(tiny, 20, 4), 30, SAMPLED)])
    for at in (1, 11, 29):
        runner = make_runner(tiny)
        resumed = Job(
            whole.prompt, 30, SAMPLED, tokens=whole.tokens[:at], logprobs=whole.logprobs[:at]
        )
        Driver(runner, budget=8).run([resumed])
        assert resumed.tokens == whole.tokens
        assert resumed.logprobs == whole.logprobs


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_default_model_among_others(precision: str, request: pytest.FixtureRequest) -> None:
    model: DecoderModel = request.getfixturevalue(f"default_{precision}")
    alone = [
        run(model, [Job(prompt(model, 20 * n + 1, n), 6, sampling)])[0]
        for n, sampling in enumerate((GREEDY, SAMPLED))
    ]
    jobs = [Job(job.prompt, 6, job.sampling) for job in alone] + company(model, part(32, 1 / 4), 24)
    run(model, jobs, block_size=32, budget=100, preempt_every=5, threads=2, seed=1)
    for ours, other in zip(jobs, alone, strict=False):
        assert ours.tokens == other.tokens
        assert ours.logprobs == other.logprobs
