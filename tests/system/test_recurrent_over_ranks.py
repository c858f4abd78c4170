"""Models with recurrent layers over pipeline stages and tensor-parallel ranks: each keeps states of
its own part, and checkpoints of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.model.config import ModelConfig
from penstock.model.kv_layout import blocks_needed, state_of
from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import FromWorker, Ready
from penstock.protocol.to_worker import Plan, Setup, ToWorker
from penstock_worker.forward import reference
from penstock_worker.loading import tensors
from penstock_worker.loading.load import load
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.worker import report
from testing.in_process import WORKER, Heard, Numerics, System, Way, recode
from tests.system.eager_drafts import eager
from tests.worker.checkpoints import TINY
from tests.worker.models.manifests import write_manifest
from tests.worker.models.test_recurrent_models import read
from tests.worker.parallel.together import Formed
from tests.worker.random_weights import RandomWeights
from tests.worker.speculation.head_folders import written

pytestmark = pytest.mark.timeout(240)
__all__ = ["eager"]

FLOAT = Numerics("reference", "float32")
GREEDY = TokenSampling(seed=1, temperature=0.0, logprobs=2)
SEEDED = TokenSampling(seed=7, temperature=0.9, logprobs=2)
PROMPTS = [[5 + at * 7 % 200 for at in range(count)] for count in (40, 21, 33)]


class OverRanks(System):
    """Its worker is several ranks, each with what the engine core tells it."""

    def __init__(self, folder: Path, way: Way, formed: Formed) -> None:
        self._formed = formed
        self._told: dict[int, list[int]] = {}
        self._by_rank: dict[Ranks, Any] = {}
        super().__init__(folder, FLOAT, way)

    def _work(self, message: ToWorker) -> None:
        if isinstance(message, Setup):
            loaded = self._formed.each(lambda ranks: load(message, ranks=ranks))
            self._by_rank = dict(zip(self._formed.ranks, loaded, strict=True))
            said = [(each.ready.num_kv_blocks, each.ready.kv_groups) for each in loaded]
            assert said == said[:1] * len(said)
            answer: FromWorker = loaded[0].ready
        else:
            assert isinstance(message, Plan)
            starts = {work.slot: work.start for work in message.work}
            self.reused += sum(starts[new.slot] for new in message.admitted)
            answer = self._execute(message)
        self.core.worker_received(WORKER, recode(answer, FromWorker), 0.0)

    def _execute(self, plan: Plan) -> Any:
        staged = self._with_tokens(plan) if self._formed.ranks[0].place.pipeline > 1 else plan

        def run(ranks: Ranks) -> Any:
            return report(self._by_rank[ranks].runner.execute(staged), ranks.place, 0.0)

        results = dict(zip(self._formed.ranks, self._formed.each(run), strict=True))
        last = [result for ranks, result in results.items() if ranks.place.last]
        assert len({result.sampled for result in last}) == 1, "all ranks sample alike"
        (lead,) = [result for ranks, result in results.items() if ranks.place.lead]
        self._told |= {work.slot: [] for work in plan.work}
        self._told |= {each.slot: [each.token] for each in lead.slots if each.token is not None}
        return msgspec.structs.replace(lead, sampled=0)

    def _with_tokens(self, plan: Plan) -> Plan:
        new = {each.slot for each in plan.admitted}
        work = [
            msgspec.structs.replace(
                each, sampled=[] if each.slot in new else self._told.get(each.slot, [])
            )
            for each in plan.work
        ]
        return msgspec.structs.replace(plan, work=work)


def staged(case: str) -> ModelConfig:
    """With layers of each kind in the first and in the second half."""
    config = read(case)
    layers = [config.layer(at) for at in range(config.num_layers)]
    return msgspec.structs.replace(
        config,
        num_layers=2 * len(layers),
        layers=(*layers, *layers),
        vocab_size=TINY.vocab_size,
    )


@pytest.fixture
def folder_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[ModelConfig], Path]:
    def random_weights(files: object, config: object, dtype: torch.dtype, **_: object) -> Any:
        return RandomWeights(dtype)

    monkeypatch.setattr(reference, "open_weights", random_weights)
    monkeypatch.setattr(tensors, "check_tensors", lambda prepared: None)  # There are no files.

    def make(config: ModelConfig) -> Path:
        write_manifest(config, tmp_path, "recurrent")
        return tmp_path

    return make


def answers(system: System) -> dict[tuple[int, int], Heard]:
    """The second prompt's sequences part; the third prompt begins as the first does."""
    system.submit(1, PROMPTS[0], 12, GREEDY)
    system.submit(2, PROMPTS[1], 10, SEEDED, 2)
    system.run()
    system.submit(3, [*PROMPTS[0][:33], 9, 9, 4], 8, GREEDY)
    system.run()
    return system.heard


def ready_of(system: OverRanks) -> Ready:
    ready: Ready = next(iter(system._by_rank.values())).ready
    return ready


STAGES = [
    "lfm2",
    pytest.param("qwen3-next", marks=pytest.mark.long),
    pytest.param("granite-hybrid", marks=pytest.mark.long),
    pytest.param("nemotron-h", marks=pytest.mark.long),
    pytest.param("mamba2", marks=pytest.mark.long),
]


@pytest.mark.parametrize("case", STAGES)
def test_stages_have_one_workers_bits(folder_of: Callable[..., Path], case: str) -> None:
    """Also where blocks are few, and steps short."""
    folder, blocks = folder_of(staged(case)), 128
    true = answers(System(folder, FLOAT, Way(16, 2048, blocks, prefix_caching=False, steps=1)))
    with Formed(1, 2) as formed:
        for budget in (2048, 19):
            way = Way(16, budget, blocks, steps=1, checkpoints=16, preemption="swap")
            system = OverRanks(folder, way, formed)
            assert answers(system) == true
            assert system.reused >= 20 + 32 or blocks < 128
            groups = ready_of(system).kv_groups
            states = state_of(groups)
            assert states is not None
            assert states.every == 16
            blocks = blocks_needed(groups, len(PROMPTS[0]) + 13, 16, 19)


TENSOR = [
    "lfm2",
    pytest.param("granite-hybrid", marks=pytest.mark.slow),
    pytest.param("lfm2-biases-no-adjustment", marks=pytest.mark.long),
    pytest.param("lfm2-moe", marks=pytest.mark.long),
    pytest.param("qwen3-next", marks=pytest.mark.long),
    pytest.param("qwen3-next-biases", marks=pytest.mark.long),
    pytest.param("qwen35", marks=pytest.mark.long),
    pytest.param("qwen35-moe", marks=pytest.mark.long),
    pytest.param("granite-moe-hybrid", marks=pytest.mark.long),
    pytest.param("nemotron-h", marks=pytest.mark.long),
    pytest.param("nemotron-h-moe", marks=pytest.mark.long),
    pytest.param("mamba2", marks=pytest.mark.long),
    pytest.param("bamba-biases", marks=pytest.mark.long),
]


@pytest.mark.parametrize("case", TENSOR)
def test_tensor_parallel_ranks(folder_of: Callable[..., Path], case: str) -> None:
    """Near one worker's numbers, as sums have another order; and the same bits in any company."""
    config = msgspec.structs.replace(read(case), vocab_size=TINY.vocab_size)
    folder = folder_of(config)
    true = answers(System(folder, FLOAT, Way(16, 2048, 128, prefix_caching=False, steps=1)))
    found = []
    with Formed(2) as formed:
        for budget, blocks in ((2048, 128), (19, 16)):
            way = Way(16, budget, blocks, steps=1, checkpoints=16, preemption="swap")
            system = OverRanks(folder, way, formed)
            found.append(answers(system))
            assert system.reused >= 20 + 32 or blocks < 128
    assert found[0] == found[1]
    for key, heard in found[0].items():
        ours, theirs = [[each.logprob for each in h.logprobs] for h in (heard, true[key])]
        same = sum(a == b for a, b in zip(heard.tokens, true[key].tokens, strict=True))
        assert same == len(heard.tokens), key
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-4), key


@pytest.mark.usefixtures("eager")
def test_a_head_drafts_the_same_on_each_rank(tmp_path: Path) -> None:
    """Each has all of the head, and its own part of the states that go back."""
    model = written("Qwen3Next", "mtp", tmp_path, counts=True)
    asked = json.dumps(model.said | {"num_speculative_tokens": 3})
    found = []
    with Formed(2) as formed:
        for said in ("off", asked):
            way = Way(16, 64, 128, steps=1, checkpoints=16, speculation=said)
            found.append(answers(OverRanks(model.folder, way, formed)))
    for key, heard in found[1].items():
        assert heard.tokens == found[0][key].tokens
        assert heard.logprobs == found[0][key].logprobs
    assert sum(heard.drafted for heard in found[1].values()) > 20
    assert sum(heard.kept for heard in found[1].values()) > 10
