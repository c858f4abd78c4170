"""Heads that draft: no bit depends on them, nor on what becomes of their keys and values when
blocks are shared, preempted and swapped; and what they say is kept."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pytest

from penstock.config.settings import PreemptionMode
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_worker import WorkerHello
from penstock_engine.speculation.upkeep import Upkeep
from testing.in_process import WORKER, Numerics, System, Way
from tests.system.eager_drafts import eager
from tests.system.test_matrix import BLOCK, GREEDY, OURS, Results, prompt, results, submit_crowd
from tests.system.test_recurrent import Poisoned
from tests.worker.speculation.head_folders import Served, written

__all__ = ["eager"]
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("eager")]


class Models(Protocol):
    """Writes a model with a head, once."""

    def __call__(self, kind: str, head: str, layers: int = 1) -> Served: ...


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
    layers: int = 1  # Of the head.


CASES = {
    "eagle3": Case("Llama", "eagle3", 64, "recompute"),
    "suffix before eagle3, swapped": Case("Llama", "eagle3", 64, "swap", before=("suffix",)),
    "eagle3 by reference": Case("Llama", "eagle3", 64, "recompute", backend="reference"),
    "mtp, swapped": Case("DeepseekV3", "mtp", 64, "swap"),
    "three layers": Case("DeepseekV3", "mtp", 64, "recompute", layers=3),
    "two layers beside the model's": Case("MiMo", "mtp", 64, "swap", layers=2),
    "mixed residuals": Case("DeepseekV4", "mtp", 64, "recompute", blocks=40),
    "mixed residuals, two layers, swapped": Case(
        "DeepseekV4", "mtp", 64, "swap", blocks=40, layers=2
    ),
    "mixed residuals by reference": Case(
        "DeepseekV4", "mtp", 64, "recompute", backend="reference", blocks=40
    ),
    "recurrent": Case("Qwen3Next", "mtp", 96, "recompute", blocks=36, checkpoints=32),
    "recurrent, three layers": Case(
        "Qwen3Next", "mtp", 96, "recompute", blocks=36, checkpoints=32, layers=3
    ),
    "recurrent, swapped": Case("Qwen3_5", "mtp", 64, "swap", blocks=32, checkpoints=32),
    "recurrent, suffix before": Case(
        "Qwen3_5Moe", "mtp", 64, "recompute", before=("suffix",), blocks=36, checkpoints=32
    ),
    "recurrent by reference": Case(
        "Qwen3Next", "mtp", 96, "recompute", backend="reference", blocks=36, checkpoints=32
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    @functools.cache
    def write(kind: str, head: str, layers: int = 1) -> Served:
        folder = tmp_path_factory.mktemp("models")
        return written(kind, head, folder, counts=True, layers=layers)

    return write


@pytest.fixture(scope="module")
def undisturbed(models: Models) -> Callable[[str, str, str, int], Results]:
    """What a model says to each request by itself, without drafts."""

    @functools.cache
    def run(kind: str, head: str, backend: str, layers: int) -> Results:
        found: Results = {}
        for number, ours in OURS.items():
            way = Way(BLOCK, 2048, 128, prefix_caching=False, steps=1, checkpoints=256)
            folder = models(kind, head, layers).folder
            system = System(folder, Numerics(backend, "float32"), way)
            system.submit(number, *ours)
            system.run()
            found |= results(system)
        return found

    return run


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_bit_depends_on_a_head(
    case: Case,
    models: Models,
    undisturbed: Callable[[str, str, str, int], Results],
) -> None:
    true = undisturbed(case.kind, case.head, case.backend, case.layers)
    drafted, kept = check(case, models(case.kind, case.head, case.layers), true)
    assert drafted > 100
    assert kept > 0.1 * drafted


@pytest.mark.parametrize("name", ["eagle3", "suffix before eagle3, swapped", "three layers"])
def test_no_bit_depends_on_its_rests(
    name: str,
    models: Models,
    undisturbed: Callable[[str, str, str, int], Results],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It leaves whom it meets in every fifth plan, so that sequences with and without its rows
    share blocks."""
    case, plans = CASES[name], itertools.count()
    monkeypatch.setattr(Upkeep, "rests", lambda upkeep, sequences: next(plans) % 5 == 4)
    true = undisturbed(case.kind, case.head, case.backend, case.layers)
    drafted, _ = check(case, models(case.kind, case.head, case.layers), true)
    assert drafted > 10


def check(case: Case, model: Served, true: Results) -> tuple[int, int]:
    """Serves a crowd, and compares what it gets. Returns how many tokens were drafted, and kept."""
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
    assert scheduling.num_preemptions > 0  # Whether there are more depends on the time drafts take.
    assert scheduling.cache.num_swapped_in > 0 or case.mode != "swap"
    assert system.reused > 100
    drafted = sum(heard.drafted for heard in system.heard.values())
    return drafted, sum(heard.kept for heard in system.heard.values())


@pytest.mark.parametrize(
    ("kind", "head", "layers", "most"),
    [
        ("Llama", "eagle3", 1, 1),
        ("DeepseekV3", "mtp", 1, 4),
        ("DeepseekV3", "mtp", 3, 4),
        ("DeepseekV4", "mtp", 1, 4),
        ("Qwen3Next", "mtp", 1, 4),
        ("Qwen3Next", "mtp", 3, 3),
    ],
)
def test_a_head_that_knows_its_model_is_mostly_right(
    kind: str, head: str, layers: int, most: int, models: Models
) -> None:
    model = models(kind, head, layers)
    asked = model.said | {"num_speculative_tokens": most, "prompt_lookup_max": 64}
    way = Way(BLOCK, 2048, 64, speculation=json.dumps(asked))
    system = System(model.folder, Numerics("cpu", "float32"), way)
    for number in range(3):
        system.submit(number, prompt(30, number), 100, GREEDY)
    system.run()
    assert system.drafted > 100
    assert system.kept > 0.9 * system.drafted


@pytest.mark.parametrize(
    ("kind", "head", "layers"),
    [("Llama", "eagle3", 1), ("Qwen3Next", "mtp", 2), ("DeepseekV4", "mtp", 1)],
)
def test_a_new_worker_goes_on_where_the_last_one_was(
    kind: str,
    head: str,
    layers: int,
    models: Models,
    undisturbed: Callable[[str, str, str, int], Results],
) -> None:
    """It has neither keys and values nor hidden states of what was computed before."""
    model = models(kind, head, layers)
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
    assert results(system) == undisturbed(kind, head, "cpu", layers)
    assert system.kept > kept
