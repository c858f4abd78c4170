"""Heads that draft: no bit depends on them, nor on what becomes of their keys and values when
blocks are shared, preempted and swapped; and what they say is kept."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from penstock.config.settings import PreemptionMode
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_worker import WorkerHello
from tests.system.eager_drafts import eager
from tests.system.in_process import WORKER, Numerics, System, Way
from tests.system.test_matrix import BLOCK, GREEDY, OURS, Results, prompt, results, submit_crowd
from tests.system.test_recurrent import Poisoned
from tests.worker.speculation.head_folders import Served, written

__all__ = ["eager"]
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("eager")]


@dataclass(frozen=True)
class Case:
    """budget, mode, checkpoints: see Way.  blocks: so few that sequences are preempted."""

    kind: str
    head: str
    budget: int
    mode: PreemptionMode
    backend: str = "cpu"
    before: tuple[str, ...] = ()
    blocks: int = 14
    checkpoints: int | None = None


CASES = {
    "eagle3": Case("Llama", "eagle3", 64, "recompute"),
    "suffix before eagle3, swapped": Case("Llama", "eagle3", 64, "swap", before=("suffix",)),
    "eagle3 by reference": Case("Llama", "eagle3", 64, "recompute", backend="reference"),
    "mtp, swapped": Case("DeepseekV3", "mtp", 64, "swap"),
    "recurrent": Case("Qwen3Next", "mtp", 96, "recompute", blocks=36, checkpoints=32),
    "recurrent, swapped": Case("Qwen3_5", "mtp", 64, "swap", blocks=32, checkpoints=32),
    "recurrent, suffix before": Case(
        "Qwen3_5Moe", "mtp", 64, "recompute", before=("suffix",), blocks=36, checkpoints=32
    ),
    "recurrent by reference": Case(
        "Qwen3Next", "mtp", 96, "recompute", backend="reference", blocks=36, checkpoints=32
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Served]:
    @functools.cache
    def write(kind: str, head: str) -> Served:
        return written(kind, head, tmp_path_factory.mktemp("models"), counts=True)

    return write


@pytest.fixture(scope="module")
def undisturbed(models: Callable[[str, str], Served]) -> Callable[[str, str, str], Results]:
    """What a model says to each request by itself, without drafts."""

    @functools.cache
    def run(kind: str, head: str, backend: str) -> Results:
        found: Results = {}
        for number, ours in OURS.items():
            way = Way(BLOCK, 2048, 128, prefix_caching=False, steps=1, checkpoints=256)
            system = System(models(kind, head).folder, Numerics(backend, "float32"), way)
            system.submit(number, *ours)
            system.run()
            found |= results(system)
        return found

    return run


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_bit_depends_on_a_head(
    case: Case,
    models: Callable[[str, str], Served],
    undisturbed: Callable[[str, str, str], Results],
) -> None:
    true, model = undisturbed(case.kind, case.head, case.backend), models(case.kind, case.head)
    asked = model.said | {"num_speculative_tokens": 3}
    asked["method"] = [*case.before, asked["method"]]
    way = Way(
        BLOCK,
        case.budget,
        case.blocks,
        preemption=case.mode,
        checkpoints=case.checkpoints,
        host_kib=32768 if case.mode == "swap" else 0,
        speculation=json.dumps(asked),
    )
    kind = System if case.checkpoints is None else Poisoned
    system = kind(model.folder, Numerics(case.backend, "float32"), way)
    submit_crowd(system)
    system.run()
    assert results(system) == true
    scheduling = system.core.state.scheduling
    assert scheduling.cache is not None
    assert scheduling.num_preemptions > 1
    assert scheduling.cache.num_swapped_in > 0 or case.mode != "swap"
    assert system.reused > 100
    drafted = sum(heard.drafted for heard in system.heard.values())
    kept = sum(heard.kept for heard in system.heard.values())
    assert drafted > 100
    assert kept > 0.1 * drafted


@pytest.mark.parametrize(
    ("kind", "head", "most"),
    [("Llama", "eagle3", 1), ("DeepseekV3", "mtp", 4), ("Qwen3Next", "mtp", 4)],
)
def test_a_head_that_knows_its_model_is_mostly_right(
    kind: str, head: str, most: int, models: Callable[[str, str], Served]
) -> None:
    model = models(kind, head)
    asked = model.said | {"num_speculative_tokens": most, "prompt_lookup_max": 64}
    way = Way(BLOCK, 2048, 64, speculation=json.dumps(asked))
    system = System(model.folder, Numerics("cpu", "float32"), way)
    for number in range(3):
        system.submit(number, prompt(30, number), 100, GREEDY)
    system.run()
    assert system.drafted > 100
    assert system.kept > 0.9 * system.drafted


@pytest.mark.parametrize(("kind", "head"), [("Llama", "eagle3"), ("Qwen3Next", "mtp")])
def test_a_new_worker_goes_on_where_the_last_one_was(
    kind: str,
    head: str,
    models: Callable[[str, str], Served],
    undisturbed: Callable[[str, str, str], Results],
) -> None:
    """It has neither keys and values nor hidden states of what was computed before."""
    model = models(kind, head)
    asked = json.dumps(model.said | {"num_speculative_tokens": 3})
    way = Way(BLOCK, 64, 64 if head == "eagle3" else 256, speculation=asked)
    system = System(model.folder, Numerics("cpu", "float32"), way)
    for number, ours in OURS.items():
        system.submit(number, *ours)
    while system.kept < 10:
        system.run_step()
    system.core.worker_ended(WORKER, "killed", 0.0)
    system.core.worker_opened(WORKER, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), 0.0)
    kept = system.kept
    system.run()
    assert results(system) == undisturbed(kind, head, "cpu")
    assert system.kept > kept
