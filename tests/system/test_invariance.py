"""A request's tokens and logprobs are the same bits alone and in a crowd, whatever the block size,
the token budget and the preemptions.

tests/worker/forward/test_bit_identity.py does the same with hand-made plans, and harsher ones.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.prepare import prepare
from penstock.protocol.common import TokenSampling
from testing.in_process import Numerics, System, Way, prompt

pytestmark = [pytest.mark.timeout(600)]
GREEDY = TokenSampling(seed=1, temperature=0.0, logprobs=5)
SAMPLED = TokenSampling(seed=77, temperature=0.9, top_p=0.95, top_k=40, logprobs=5)


NUMERICS = [
    Numerics("cpu", "auto"),
    Numerics("cpu", "bfloat16"),
    Numerics("reference", "float32"),
    Numerics("reference", "bfloat16"),
]


OURS = {1: (prompt(45, 1), 20, GREEDY), 2: (prompt(19, 2), 24, SAMPLED)}


def submit_all(system: System, others: int) -> None:
    """Ours and `others` of mixed lengths and sampling. Three come before ours and want many tokens:
    where blocks run out, it is for them, and those that came later make room."""
    for number in range(200, 203):
        system.submit(number, prompt(45, number), 40, GREEDY)
    for number, ours in OURS.items():
        system.submit(number, *ours)
    choose = random.Random(3)
    for number in range(100, 100 + others - 3):
        sampling = GREEDY if number % 2 else TokenSampling(number, temperature=1.2)
        length, wanted = choose.randint(1, 70), choose.randint(1, 12)
        system.submit(number, prompt(length, number), wanted, sampling)


Results = dict[int, tuple[list[int], bytes]]


def result(system: System) -> Results:
    """Tokens and logprobs, the latter as encoded bytes: equal only bit for bit."""
    return {number: result_of_one(system, number) for number in OURS}


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare("smollm2-135m")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[Numerics], Results]:
    """Each of our requests by itself, in one chunk, with more blocks than it needs."""

    @functools.cache
    def run(numerics: Numerics) -> Results:
        results = {}
        for number, ours in OURS.items():
            system = System(folder, numerics, Way(block_size=16, budget=2048, num_blocks=64))
            system.submit(number, *ours)
            system.run()
            results |= {number: result_of_one(system, number)}
        return results

    return run


def result_of_one(system: System, number: int) -> tuple[list[int], bytes]:
    heard = system.heard[number, 0]
    assert len(heard.tokens) == len(heard.logprobs) == OURS[number][1]
    return heard.tokens, msgspec.msgpack.encode(heard.logprobs)


CROWDED = {
    "reference": [
        Way(block_size=1, budget=64, num_blocks=4096),
        Way(block_size=16, budget=16, num_blocks=256),
        Way(block_size=32, budget=2048, num_blocks=128),
    ],
    "cpu": [
        Way(block_size=16, budget=16, num_blocks=256),
        Way(block_size=32, budget=64, num_blocks=128, threads=1),
        Way(block_size=48, budget=512, num_blocks=96),
        Way(block_size=16, budget=2048, num_blocks=256, threads=1),
    ],
}

TIGHT = {
    "reference": [
        Way(block_size=1, budget=2048, num_blocks=232),
        Way(block_size=16, budget=64, num_blocks=15),
        Way(block_size=32, budget=16, num_blocks=10),
    ],
    "cpu": [
        Way(block_size=16, budget=64, num_blocks=15),
        Way(block_size=32, budget=16, num_blocks=10, threads=1),
        Way(block_size=48, budget=2048, num_blocks=6),
    ],
}


def pairs(ways: dict[str, list[Way]]) -> list:
    """Each backend's ways with each of its types; tests/thinning.py chooses some of them.
    test_matrix goes through many more with a tiny model."""
    return [
        pytest.param(
            (numerics, way),
            id=f"{numerics.backend} {numerics.dtype}, {way.num_blocks} blocks of "
            f"{way.block_size}, budget {way.budget}, {way.threads} threads",
        )
        for numerics in NUMERICS
        for way in ways[numerics.backend]
    ]


@pytest.mark.parametrize("pair", pairs(CROWDED))
def test_the_same_among_32_others(folder, alone, pair):
    numerics, way = pair
    system = System(folder, numerics, way)
    submit_all(system, others=32)
    system.run()
    assert system.core.state.scheduling.num_preemptions == 0
    assert result(system) == alone(numerics)


@pytest.mark.parametrize("pair", pairs(TIGHT))
def test_the_same_when_preempted(folder, alone, pair):
    """The pool holds what the first five need to start, and little more."""
    numerics, way = pair
    system = System(folder, numerics, way)
    submit_all(system, others=10)
    preempted = watch_preemptions(system)
    system.run()
    assert preempted & set(OURS)
    assert result(system) == alone(numerics)


def watch_preemptions(system: System) -> set[int]:
    """Fills with the numbers of requests that lose their blocks while they run."""
    seen: set[int] = set()
    queue = system.core.state.scheduling.queue
    push = queue.push

    def noting(sequence):
        if sequence.state.name == "PREEMPTED":
            seen.add(sequence.request.number)
        push(sequence)

    queue.push = noting
    return seen
