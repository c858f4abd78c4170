"""A model that drafts beside the one that is served: no bit depends on it, nor on what becomes of
its keys and values when blocks are shared, preempted and swapped."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest

from deploy.local import free_port
from penstock.config.settings import PreemptionMode
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock_engine.speculation.draft_policy import DraftPolicy, Offer, StepSize
from testing.in_process import Numerics, System, Way
from testing.model_configs import varied
from testing.serving import Server, wait_until
from tests.system.eager_drafts import eager
from tests.system.test_matrix import BLOCK, OURS, Results, results, submit_crowd
from tests.system.test_recovery import stream_text
from tests.worker.checkpoints import TINY
from tests.worker.speculation.draft_folders import write_folder

__all__ = ["eager"]
pytestmark = [pytest.mark.timeout(300)]

PLAIN = varied(TINY, head_dim=32)
SMALL = varied(TINY, head_dim=16, num_layers=1, hidden_size=32)


@dataclass(frozen=True)
class Case:
    """seed: of the draft model's weights; 0: it is the model that is served.  budget, mode: see
    Way.  blocks: so few that sequences are preempted."""

    served: ModelConfig
    draft: ModelConfig
    seed: int
    budget: int
    mode: PreemptionMode
    blocks: int = 16
    backend: str = "cpu"


def windowed() -> ModelConfig:
    (layer,) = PLAIN.layers
    window = msgspec.structs.replace(layer, attention=AttentionSpec(window=37))
    return msgspec.structs.replace(PLAIN, layers=(window, layer))


@pytest.fixture(autouse=True)
def _as_many_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts by a model of the same size don't pay, and so there would be few."""

    def choose(self: DraftPolicy, offers: list[Offer], size: StepSize, left: int) -> list[int]:
        counts = []
        for offer in offers:
            counts.append(min(offer.most, left))
            left -= counts[-1]
        return counts

    monkeypatch.setattr(DraftPolicy, "choose", choose)


@dataclass(frozen=True)
class Undisturbed:
    """What a model says to each request by itself, without drafts."""

    folder: Path
    results: Results


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Undisturbed]:
    @functools.cache
    def run(windows: bool, backend: str) -> Undisturbed:
        config = windowed() if windows else PLAIN
        folder = write_folder(tmp_path_factory.mktemp("models") / "served", config)
        found: Results = {}
        for number, ours in OURS.items():
            way = Way(BLOCK, 2048, 128, prefix_caching=False, steps=1)
            system = System(folder, Numerics(backend, "float32"), way)
            system.submit(number, *ours)
            system.run()
            found |= results(system)
        return Undisturbed(folder, found)

    return lambda case: run(case.served is not PLAIN, case.backend)


CASES = {
    "itself": Case(PLAIN, PLAIN, 0, 64, "recompute"),
    "itself, swapped": Case(PLAIN, PLAIN, 0, 16, "swap"),
    "another": Case(PLAIN, SMALL, 1, 64, "recompute"),
    "windows": Case(windowed(), windowed(), 0, 64, "swap", blocks=36),
    "reference": Case(PLAIN, PLAIN, 0, 64, "recompute", backend="reference"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.usefixtures("eager")
def test_no_bit_depends_on_a_draft_model(
    case: Case, undisturbed: Callable[[Case], Undisturbed], tmp_path: Path
) -> None:
    true = undisturbed(case)
    other = write_folder(tmp_path / "draft", case.draft, case.seed)
    asked = {"method": "draft_model", "model": str(other), "num_speculative_tokens": 3}
    way = Way(
        BLOCK,
        case.budget,
        case.blocks,
        preemption=case.mode,
        host_kib=8192 if case.mode == "swap" else 0,
        speculation=json.dumps(asked),
    )
    numerics = Numerics(case.backend, "float32")
    system = System(true.folder, numerics, way)
    submit_crowd(system)
    system.run()
    assert results(system) == true.results
    scheduling = system.core.state.scheduling
    assert scheduling.cache is not None
    assert scheduling.num_preemptions > 0  # Whether there are more depends on the time drafts take.
    assert scheduling.cache.num_swapped_in > 1 or case.mode != "swap"
    assert system.reused > 100
    drafted = sum(heard.drafted for heard in system.heard.values())
    kept = sum(heard.kept for heard in system.heard.values())
    assert drafted > 100
    if case.seed == 0:
        assert kept > 0.6 * drafted  # Penalties are unknown to the draft model.
    else:
        assert kept < 0.2 * drafted


@pytest.mark.parametrize("victim", ["worker 0", "engine"])
def test_a_stream_goes_on_when_a_process_is_killed(victim: str, drafting: Drafting) -> None:
    """Whoever is started again has the draft model, too."""
    server = drafting.server
    wait_until(server.ready)
    undisturbed = stream_text(server.url)
    first, boot = server.child(victim), server.get("/status")[1]["boot"]

    def kill_once(count: int) -> None:
        if count == 8:
            os.kill(first, signal.SIGKILL)

    assert stream_text(server.url, kill_once) == undisturbed
    wait_until(lambda: server.children().get(f"penstock: {victim}") not in (None, first))
    wait_until(server.ready)
    if victim == "engine":
        wait_until(lambda: server.engine_replaced(boot))

    def drafts_again() -> bool:
        """In one stream or another: a draft model as slow as this is hardly worth a try."""
        assert stream_text(server.url) == undisturbed
        return drafting.drafted() > 0

    wait_until(drafts_again)


@dataclass(frozen=True)
class Drafting:
    server: Server
    metrics_port: int

    def drafted(self) -> float:
        """Tokens that were drafted since the engine core was started."""
        shown = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60).text
        name = "vllm:spec_decode_num_draft_tokens_total"
        (line,) = [line for line in shown.splitlines() if line.startswith(name)]
        return float(line.split()[-1])


@pytest.fixture(scope="module")
def drafting() -> Iterator[Drafting]:
    """The default model drafts for itself."""
    asked = json.dumps({"model": "smollm2-135m", "num_speculative_tokens": 3})
    port = free_port()
    options = ("--max-model-len", "512", "--num-kv-blocks", "128", "--max-num-seqs", "4")
    ports = ("--engine-metrics-port", str(port))
    with Server(*options, *ports, "--speculative-config", asked) as server:
        yield Drafting(server, port)
