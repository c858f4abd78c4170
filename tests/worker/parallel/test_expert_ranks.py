"""Where an expert is matters to no bit: ranks that hold whole experts give one worker's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from penstock.errors import StartupError
from penstock.model.expert_places import ExpertPlace, ExpertPlaces
from penstock_kernels.cpu.program import PhaseKind
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.parallel import shared_memory
from penstock_worker.parallel.errors import GroupLost
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import read
from tests.worker.models.test_family_bits import EACH, alone, in_chunks_and_company
from tests.worker.models.test_parity_on_cpu import REFUSED
from tests.worker.parallel.forward_over_ranks import ForwardOverRanks
from tests.worker.parallel.test_cpu_ranks import CUT, NO_FILES, opened
from tests.worker.parallel.together import Formed

pytestmark = pytest.mark.timeout(120)
MIXTURES = [
    case
    for case in CUT
    if case not in REFUSED and any(layer.feed_forward.experts for layer in read(case).layers)
]
ON_FOUR = ("qwen3-moe", "gpt-oss", "deepseek-v2-lite", "glm45-groups", "nemotron-h-latents")


@pytest.fixture(scope="module", autouse=True)
def without_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "open_weights", opened)
        yield


@pytest.fixture(scope="module")
def two() -> Iterator[Formed]:
    with Formed(2) as formed:
        yield formed


@pytest.fixture(scope="module")
def four() -> Iterator[Formed]:
    with Formed(4) as formed:
        yield formed


def model(case: str, dtype: str = "float32", **options: Any) -> CPUModel:
    """Of a dense layer each of four ranks has a part; an expert is as small as it is."""
    config = read(case)
    dense = max(config.intermediate_size, 128)
    layers = []
    for layer in config.layers:
        experts = layer.feed_forward.experts
        if experts is not None and experts.shared_inner:
            wide = msgspec.structs.replace(experts, shared_inner=128)
            feed_forward = msgspec.structs.replace(layer.feed_forward, experts=wide)
            layer = msgspec.structs.replace(layer, feed_forward=feed_forward)
        layers.append(layer)
    config = msgspec.structs.replace(config, intermediate_size=dense, layers=tuple(layers))
    return CPUModel(config, NO_FILES, dtype, positions=1024, expert_parallel=True, **options)


def one_worker(of: CPUModel) -> torch.Tensor:
    lone = replace(of, expert_parallel=False)
    with torch.inference_mode():
        return alone(lone.forward(block_size=16, num_blocks=EACH * of.groups, threads=1), of.groups)


def disturbed(of: CPUModel, formed: Formed, **options: Any) -> torch.Tensor:
    return in_chunks_and_company(ForwardOverRanks(formed, of, **options), of.groups)


@pytest.mark.parametrize("case", MIXTURES)
def test_two_ranks_have_one_workers_bits(case: str, two: Formed) -> None:
    mine = model(case)
    true = one_worker(mine)
    assert bool(true.isfinite().all())
    assert true.std() > 0
    assert torch.equal(alone(ForwardOverRanks(two, mine), mine.groups), true)
    assert torch.equal(disturbed(mine, two), true)


@pytest.mark.parametrize("case", ON_FOUR)
def test_four_ranks_have_one_workers_bits(case: str, four: Formed) -> None:
    mine = model(case, "bfloat16")
    assert torch.equal(disturbed(mine, four, threads=2), one_worker(mine))


@pytest.mark.parametrize("case", ["qwen3-moe", "mixtral"])
def test_stages_of_two_ranks(case: str) -> None:
    mine = model(case)
    with Formed(2, 2) as formed:
        assert torch.equal(disturbed(mine, formed), one_worker(mine))


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"matmul_precision": "high"}])
def test_quantised_and_precise(options: dict[str, str], two: Formed) -> None:
    mine = model("glm45", "auto", **options)
    assert torch.equal(disturbed(mine, two), one_worker(mine))


def test_experts_of_a_rank_need_not_be_neighbours(
    two: Formed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is data."""
    mine = model("qwen3-moe")
    owners = (1, 0, 0, 1, 0, 1)
    layers = map(mine.config.layer, range(mine.config.num_layers))
    table = ExpertPlaces(
        tuple(
            tuple(map(ExpertPlace, owners)) if layer.feed_forward.experts else ()
            for layer in layers
        )
    )
    monkeypatch.setattr(cpu, "parallel_places", lambda config, ranks: table)
    over = ForwardOverRanks(two, mine)
    assert [experts_held(each) for each in over.by_rank.values()] == [{1, 2, 4}, {0, 3, 5}]
    assert torch.equal(in_chunks_and_company(over, mine.groups), one_worker(mine))


def test_more_rows_than_an_area_takes(two: Formed, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = model("qwen3-moe")
    monkeypatch.setattr(shared_memory, "HALF", 4 * 96 * 7)
    assert torch.equal(disturbed(mine, two), one_worker(mine))


def test_ranks_on_several_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = model("qwen3-moe")
    monkeypatch.setattr(shared_memory.platform, "machine", lambda: "another")
    with Formed(4) as formed:
        assert torch.equal(disturbed(mine, formed), one_worker(mine))


def experts_held(forward: Any) -> set[int]:
    """The experts that have tiles, of which all layers have the same."""
    [held] = {
        tuple(number for number, matrix in enumerate(phase.experts.downs) if matrix.size)
        for phase in forward._decoder.program.phases
        if phase.kind is PhaseKind.EXPERTS_DOWN
    }
    return set(held)


def expert_bytes(forward: Any) -> int:
    return sum(
        matrix.size
        for phase in forward._decoder.program.phases
        if phase.kind is PhaseKind.EXPERTS_DOWN
        for matrix in (*phase.experts.gates, *phase.experts.ups, *phase.experts.downs)
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_holds_its_experts_alone(ranks: int, caplog: pytest.LogCaptureFixture) -> None:
    mine = model("qwen3-moe")
    whole = replace(mine, expert_parallel=False).forward(block_size=16, num_blocks=32, threads=1)
    with Formed(ranks) as formed:
        over = ForwardOverRanks(formed, mine)
        parts = list(over.by_rank.values())
    each = 6 // ranks
    assert [experts_held(part) for part in parts] == [
        set(range(rank * each, rank * each + each)) for rank in range(ranks)
    ]
    assert {expert_bytes(part) for part in parts} == {expert_bytes(whole) // ranks}


def test_a_group_that_is_over_ends_the_step(two: Formed) -> None:
    over = ForwardOverRanks(two, model("glm45"), threads=2)
    two.ranks[1].abandon()
    with pytest.raises(GroupLost):
        alone(over.by_rank[two.ranks[1]])
    two.ranks[1]._abandoned = False


@pytest.mark.parametrize(
    ("case", "backend", "said"),
    [
        ("mixtral", "cpu", r"deals 5 experts to tensor_parallel_size ranks, which is 6; .* 2 to 5"),
        ("llama-yarn", "cpu", "the model has no experts"),
        ("qwen3-moe", "reference", "which the cpu backend alone has"),
    ],
)
def test_what_can_not_be_dealt_is_named(case: str, backend: str, said: str) -> None:
    mine = model(case, backend=backend)
    with Formed(6) as formed, pytest.raises(StartupError, match=said):
        ForwardOverRanks(formed, mine)


@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
def test_one_rank_alone_deals_nothing(backend: str) -> None:
    with pytest.raises(StartupError, match="which is 1; allowed are 2 to 6"):
        model("qwen3-moe", backend=backend).recipe()
