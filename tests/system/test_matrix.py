"""Every way of running, on a tiny real model: the same tokens, and logprobs bit for bit.

{prefix cache on, off} x {chunks of 16, 64, whole} x {preempted and recomputed, or swapped, or not
preempted} x {pipelined, step by step} x {alone, crowded}, for every backend and KV type: every pair
of these, and every combination with --long.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.config.settings import PreemptionMode
from penstock.model.prepared_model import GenerationDefaults, PreparedModel
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST
from penstock.protocol.common import LogitsAdjustments, ThinkingBudget, TokenSampling
from testing.in_process import Numerics, System, Way
from testing.model_configs import varied
from tests.worker.checkpoints import TINY, tiny_files

pytestmark = [pytest.mark.timeout(600)]

NUMERICS = [
    Numerics("cpu", "float32", "int8"),
    Numerics("reference", "bfloat16"),
    Numerics("reference", "float32"),
    Numerics("cpu", "float32"),
    Numerics("cpu", "bfloat16"),
]
"""The first runs without --long, and of a crowd the third."""
BLOCK = 16
GREEDY = TokenSampling(seed=1, temperature=0.0, logprobs=3)
SAMPLED = TokenSampling(seed=77, temperature=0.9, top_p=0.95, top_k=40, logprobs=3)
# Each depends on tokens that were emitted before: what a preemption must not lose.
ADJUSTED = TokenSampling(
    seed=5,
    temperature=1.1,
    min_p=0.01,
    logprobs=2,
    adjustments=LogitsAdjustments(
        presence=0.6,
        frequency=0.9,
        repetition=1.4,
        bias=dict.fromkeys(range(0, 301, 7), 1.5),
        allowed=tuple(range(0, 290, 2)),
        bad_words=(*((first, first + 2) for first in range(0, 280, 4)), (6,)),
    ),
    prompt_logprobs=2,
)
GREEDY_PENALISED = TokenSampling(
    seed=1,
    temperature=0.0,
    logprobs=1,
    adjustments=LogitsAdjustments(frequency=2.0, repetition=1.2),
    prompt_logprobs=0,
)

THINKING = ThinkingBudget(tokens=20, begin=(3,), ends=((17,),), closing=(17, 4), spent=2)
BUDGETED = TokenSampling(
    seed=9, temperature=1.2, logprobs=1, adjustments=LogitsAdjustments(thinking=THINKING)
)


def prompt(length: int, seed: int) -> list[int]:
    """The first 40 tokens are everybody's."""
    common, own = random.Random(0), random.Random(seed)
    tokens = [common.randrange(TINY.vocab_size) for _ in range(40)]
    return (tokens + [own.randrange(TINY.vocab_size) for _ in range(max(0, length - 40))])[:length]


# number: prompt, tokens wanted, sampling, n
OURS = {
    1: (prompt(75, 1), 30, GREEDY, 1),
    2: (prompt(41, 2), 30, SAMPLED, 3),
    3: (prompt(7, 3), 20, SAMPLED, 1),
    4: (prompt(77, 4), 30, ADJUSTED, 2),
    5: (prompt(150, 5), 20, GREEDY_PENALISED, 1),
    6: (prompt(90, 6), 0, msgspec.structs.replace(GREEDY, prompt_logprobs=4), 1),
    7: (prompt(60, 7), 30, BUDGETED, 2),
}

Results = dict[tuple[int, int], tuple[list[int], bytes, bytes]]


def results(system: System) -> Results:
    return {
        key: (
            heard.tokens,
            msgspec.msgpack.encode(heard.logprobs),
            msgspec.msgpack.encode(heard.prompt_logprobs),
        )
        for key, heard in system.heard.items()
        if key[0] in OURS
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder with a manifest alone: nobody here asks for text."""
    path = tmp_path_factory.mktemp("tiny")
    manifest = PreparedModel(
        format_version=FORMAT_VERSION,
        name="tiny",
        source="tiny",
        config=varied(TINY, head_dim=32),
        generation=GenerationDefaults(),
        weights=tiny_files(path, varied(TINY, head_dim=32)),
        digest="0",
        has_chat_template=False,
    )
    (path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return path


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Callable[[Numerics], Results]:
    """Each of our requests by itself, in one chunk, step by step, with no cache to find it in."""

    @functools.cache
    def run(numerics: Numerics) -> Results:
        found: Results = {}
        for number, ours in OURS.items():
            system = System(folder, numerics, Way(BLOCK, 2048, 64, prefix_caching=False, steps=1))
            system.submit(number, *ours)
            system.run()
            found |= results(system)
        return found

    return run


CACHING = (True, False)
BUDGETS = (16, 64, 2048)
MODES: tuple[PreemptionMode | None, ...] = ("recompute", "swap", None)
STEPS = (1, 2)


@pytest.fixture
def ways(request: pytest.FixtureRequest) -> list[tuple[bool, int, PreemptionMode | None, int]]:
    """A third of them, in which each value meets each value of the others; all with --long."""
    every = request.config.getoption("--long")
    return [
        (caching, budget, mode, steps)
        for caching, budget, mode, steps in itertools.product(CACHING, BUDGETS, MODES, STEPS)
        if every or (caching + BUDGETS.index(budget) + MODES.index(mode) + steps) % 3 == 0
    ]


@pytest.fixture
def unhurried_ways(request: pytest.FixtureRequest) -> list[tuple[bool, int, int]]:
    """Ways without preemption: half of them, or all with --long."""
    every = request.config.getoption("--long")
    return [
        (caching, budget, steps)
        for caching, budget, steps in itertools.product(CACHING, BUDGETS, STEPS)
        if every or (caching + BUDGETS.index(budget) + steps) % 2
    ]


@pytest.mark.parametrize("numerics", NUMERICS, ids=str)
def test_crowded(folder: Path, undisturbed, ways, numerics: Numerics) -> None:
    preemptions = swaps = reused = 0
    for caching, budget, mode, steps in ways:
        way = Way(
            BLOCK,
            budget,
            num_blocks=256 if mode is None else 20,
            prefix_caching=caching,
            preemption=mode or "auto",
            host_kib=4096 if mode == "swap" else 0,
            steps=steps,
        )
        system = System(folder, numerics, way)
        submit_crowd(system)
        system.run()
        assert results(system) == undisturbed(numerics), way
        scheduler = system.core.state.scheduling
        assert mode is not None or scheduler.num_preemptions == 0
        assert scheduler.cache is not None
        preemptions += scheduler.num_preemptions
        swaps += scheduler.cache.num_swapped_in
        reused += system.reused
    assert preemptions > 20
    assert swaps > 20
    assert reused > 1000


def submit_crowd(system: System) -> None:
    """Three come before ours and want many tokens: where blocks run out, it is for them."""
    for number in range(200, 203):
        system.submit(number, prompt(60, number), 60, GREEDY)
    for number, ours in OURS.items():
        system.submit(number, *ours)
    choose = random.Random(3)
    for number in range(100, 109):
        sampling = GREEDY if number % 2 else TokenSampling(number, temperature=1.2)
        length, wanted = choose.randint(1, 90), choose.randint(1, 12)
        system.submit(number, prompt(length, number), wanted, sampling)


def test_what_is_compared_is_what_was_asked_for(undisturbed) -> None:
    found = undisturbed(NUMERICS[0])
    told = {key: len(msgspec.msgpack.decode(value[2])) for key, value in found.items()}
    assert {key: count for key, count in told.items() if count} == {
        (4, 0): 76,
        (5, 0): 149,
        (6, 0): 89,
    }
    assert found[6, 0][0] == []
    tokens = found[4, 0][0]
    assert all(token % 2 == 0 and token != 6 for token in tokens)
    assert not any(b == a + 2 and a % 4 == 0 for a, b in itertools.pairwise(tokens))
    for index in range(2):
        tokens = found[7, index][0]
        assert 17 not in tokens[:18], "it didn't close its thoughts by itself"
        assert tokens[18:20] == [17, 4]


@pytest.mark.parametrize("numerics", NUMERICS, ids=str)
def test_alone_and_again(folder: Path, undisturbed, unhurried_ways, numerics: Numerics) -> None:
    """One after the other in one system, twice: the second time most is in the cache."""
    for caching, budget, steps in unhurried_ways:
        way = Way(BLOCK, budget, 64, prefix_caching=caching, steps=steps)
        system = System(folder, numerics, way)
        for _ in range(2):
            for number, ours in OURS.items():
                system.submit(number, *ours)
                system.run()
            assert results(system) == undisturbed(numerics), way
        if caching:
            assert system.reused >= 3 * 32
