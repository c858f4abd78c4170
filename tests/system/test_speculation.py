"""Speculation changes no bit: every way to draft, in every company, with every kind of request."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from testing.in_process import Numerics, System, Way
from tests.system.eager_drafts import eager
from tests.system.test_matrix import ADJUSTED, BUDGETED, GREEDY, SAMPLED, folder, prompt

pytestmark = [pytest.mark.timeout(600)]
__all__ = ["eager", "folder"]

NUMERICS = [Numerics("reference", "bfloat16"), Numerics("cpu", "float32", "int8")]
METHODS = ["ngram", "suffix", "prediction"]
FEW_WORDS = TokenSampling(
    seed=3, temperature=0.3, logprobs=1, adjustments=LogitsAdjustments(allowed=(11, 12, 13))
)
"""So that an output repeats itself, as that of a real model does in a list or a table."""

# number: prompt, tokens wanted, sampling, n
OURS: dict[int, tuple[list[int], int, TokenSampling, int]] = {
    1: (prompt(75, 1), 40, GREEDY, 1),
    2: (prompt(50, 5), 40, FEW_WORDS, 2),
    3: (prompt(41, 2), 30, SAMPLED, 2),
    4: (prompt(77, 4), 30, ADJUSTED, 2),
    5: (prompt(60, 7), 30, BUDGETED, 2),
}
Results = dict[tuple[int, int], tuple[list[int], bytes]]


def results(system: System) -> Results:
    return {
        key: (heard.tokens, msgspec.msgpack.encode(heard.logprobs))
        for key, heard in system.heard.items()
        if key[0] in OURS
    }


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Callable[[Numerics], Results]:
    """Each by itself, with nothing drafted."""

    @functools.cache
    def run(numerics: Numerics) -> Results:
        found: Results = {}
        for number, ours in OURS.items():
            system = System(folder, numerics, Way(16, 2048, 64, prefix_caching=False, steps=1))
            system.submit(number, *ours)
            system.run()
            found |= results(system)
        return found

    return run


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("numerics", NUMERICS, ids=str)
@pytest.mark.usefixtures("eager")
def test_outputs_are_those_without(
    folder: Path, undisturbed: Callable[[Numerics], Results], numerics: Numerics, method: str
) -> None:
    """Alone and crowded, with and without a prefix cache, with few blocks and with many. What is
    predicted is the output, with a wrong token in it."""
    true = undisturbed(numerics)
    config = '{"method": "%s"}' % ("suffix" if method == "prediction" else method)
    for caching, blocks, crowd in [(True, 256, 3), (False, 256, 3), (True, 19, 3), (True, 64, 0)]:
        way = Way(16, 96, blocks, prefix_caching=caching, speculation=config)
        system = System(folder, numerics, way)
        for number, ours in OURS.items():
            predicted = [*true[number, 0][0][:9], 3, *true[number, 0][0][9:]]
            more = {"prediction": predicted} if method == "prediction" else {}
            system.submit(number, *ours, **more)
            if not crowd:
                system.run()
        for other in range(crowd):
            system.submit(100 + other, prompt(60, 50 + other), 25, SAMPLED)
        system.run()
        assert results(system) == true
        assert 0 < system.kept < system.drafted
        assert (system.core.state.scheduling.num_preemptions > 0) == (blocks == 19)


def test_what_pays_is_drafted_and_changes_nothing(
    folder: Path, undisturbed: Callable[[Numerics], Results]
) -> None:
    """The policy decides, by measured seconds, as it does where models are served."""
    system = System(folder, NUMERICS[1], Way(16, 2048, 256, speculation='{"method": "suffix"}'))
    for number, ours in OURS.items():
        system.submit(number, *ours)
    system.run()
    assert results(system) == undisturbed(NUMERICS[1])
