"""Assistants, which borrow the model's keys and values: no bit depends on them, nor on what becomes
of those blocks; and what they say is kept."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from penstock.config.settings import PreemptionMode
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_worker import WorkerHello
from testing.in_process import WORKER, Numerics, System, Way
from tests.system.eager_drafts import eager
from tests.system.test_matrix import BLOCK, GREEDY, OURS, Results, prompt, results, submit_crowd
from tests.worker.speculation.assistant_folders import COUNTED, Assisted, assisted

__all__ = ["eager"]
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("eager")]


@dataclass(frozen=True)
class Case:
    """mode: see Way.  blocks: so few that sequences are preempted."""

    mode: PreemptionMode
    backend: str = "cpu"
    before: tuple[str, ...] = ()
    blocks: int = 28


CASES = {
    "recomputed": Case("recompute"),
    "swapped, suffix before": Case("swap", before=("suffix",)),
    "by reference": Case("recompute", backend="reference"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Assisted:
    return assisted(COUNTED, tmp_path_factory.mktemp("model"), counts=True)


@pytest.fixture(scope="module")
def undisturbed(model: Assisted) -> Callable[[str], Results]:
    """What the model says to each request by itself, without drafts."""

    @functools.cache
    def run(backend: str) -> Results:
        found: Results = {}
        for number, ours in OURS.items():
            way = Way(BLOCK, 2048, 256, prefix_caching=False, steps=1)
            system = System(model.folder, Numerics(backend, "float32"), way)
            system.submit(number, *ours)
            system.run()
            found |= results(system)
        return found

    return run


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_bit_depends_on_an_assistant(
    case: Case, model: Assisted, undisturbed: Callable[[str], Results]
) -> None:
    asked = model.said | {"num_speculative_tokens": 3, "method": [*case.before, "mtp"]}
    way = Way(
        BLOCK,
        64,
        case.blocks,
        preemption=case.mode,
        host_kib=32768 if case.mode == "swap" else 0,
        speculation=json.dumps(asked),
    )
    system = System(model.folder, Numerics(case.backend, "float32"), way)
    submit_crowd(system)
    system.run()
    assert results(system) == undisturbed(case.backend)
    scheduling = system.core.state.scheduling
    assert scheduling.cache is not None
    assert scheduling.num_preemptions > 0  # Whether there are more depends on the time drafts take.
    assert scheduling.cache.num_swapped_in > 0 or case.mode != "swap"
    assert system.reused > 100
    drafted = sum(heard.drafted for heard in system.heard.values())
    kept = sum(heard.kept for heard in system.heard.values())
    assert drafted > 100
    assert kept > 0.1 * drafted


def test_an_assistant_that_knows_its_model_is_mostly_right(model: Assisted) -> None:
    asked = model.said | {"num_speculative_tokens": 4, "prompt_lookup_max": 64}
    way = Way(BLOCK, 2048, 128, speculation=json.dumps(asked))
    system = System(model.folder, Numerics("cpu", "float32"), way)
    for number in range(3):
        system.submit(number, prompt(30, number), 100, GREEDY)
    system.run()
    assert system.drafted > 100
    assert system.kept > 0.9 * system.drafted


def test_a_new_worker_goes_on_where_the_last_one_was(
    model: Assisted, undisturbed: Callable[[str], Results]
) -> None:
    """It has neither keys and values nor hidden states of what was computed before."""
    asked = json.dumps(model.said | {"num_speculative_tokens": 3})
    way = Way(BLOCK, 64, 128, speculation=asked)
    system = System(model.folder, Numerics("cpu", "float32"), way)
    for number, ours in OURS.items():
        system.submit(number, *ours)
    while system.kept < 10:
        system.run_step()
    system.core.worker_ended(WORKER, "killed", 0.0)
    system.core.worker_opened(WORKER, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), 0.0)
    kept = system.kept
    system.run()
    assert results(system) == undisturbed("cpu")
    assert system.kept > kept
