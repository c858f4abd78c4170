"""On the CPU kernels, ranks and stages give one worker's bits: every family, every mechanism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec
from penstock.model.prepared_model import WeightFiles
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward import reference
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.forward.interface import Batch
from penstock_worker.parallel.errors import GroupLost
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES, ON_ONE_RANK, read
from tests.worker.models.test_family_bits import EACH, alone, in_chunks_and_company
from tests.worker.models.test_parity_on_cpu import REFUSED
from tests.worker.models.test_twins import read as read_twin
from tests.worker.parallel.forward_over_ranks import ForwardOverRanks
from tests.worker.parallel.together import Formed
from tests.worker.random_weights import RandomWeights

pytestmark = pytest.mark.timeout(120)
CUT = [case for case in CASES if case not in ("qwen2-1-1-tied", *ON_ONE_RANK)]
"""One head can't be shared, nor can Gemma 3n's and 4's layers; Trinity's gates are by the reference
alone."""
NO_FILES = WeightFiles(format="safetensors", files=(), dtype="float32")


@pytest.fixture(scope="module", autouse=True)
def without_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for backend in (cpu, reference):
            patch.setattr(backend, "open_weights", opened)
        yield


def opened(
    _files: Any, _config: Any, dtype: torch.dtype = torch.float32, **_also: Any
) -> RandomWeights:
    return RandomWeights(dtype)


@pytest.fixture(scope="module")
def two() -> Iterator[Formed]:
    with Formed(2) as formed:
        yield formed


def model(case: str, dtype: str = "float32", **options: Any) -> CPUModel:
    return CPUModel(wide(read(case)), NO_FILES, dtype, positions=1024, **options)


def wide(config: ModelConfig) -> ModelConfig:
    """With experts of which each rank has at least a tile."""
    layers = []
    for layer in config.layers:
        feed_forward = layer.feed_forward
        experts = feed_forward.experts
        if isinstance(experts, ExpertsSpec):
            experts = msgspec.structs.replace(
                experts,
                inner=max(experts.inner, 80),
                shared_inner=experts.shared_inner and max(experts.shared_inner, 96),
            )
            feed_forward = msgspec.structs.replace(feed_forward, experts=experts)
        layers.append(msgspec.structs.replace(layer, feed_forward=feed_forward))
    return msgspec.structs.replace(config, layers=tuple(layers))


@pytest.mark.parametrize("case", [*CUT, "trinity"])
def test_ranks_of_the_reference(case: str, two: Formed) -> None:
    """Their sums are in another order than one worker's, and the same for any company."""
    mine = model(case, backend="reference")
    ours = alone(ForwardOverRanks(two, mine), mine.groups)
    assert torch.equal(in_chunks_and_company(ForwardOverRanks(two, mine), mine.groups), ours)
    assert torch.allclose(ours, one_worker(mine), rtol=1e-4, atol=1e-4)


def one_worker(of: CPUModel) -> torch.Tensor:
    with torch.inference_mode():
        forward = of.forward(block_size=16, num_blocks=EACH * of.groups, threads=1)
        return alone(forward, of.groups)


@pytest.mark.parametrize("case", [case for case in CUT if case not in REFUSED])
def test_two_ranks_have_one_workers_bits(case: str, two: Formed) -> None:
    mine = model(case)
    true = one_worker(mine)
    assert bool(true.isfinite().all())
    assert true.std() > 0
    ours = in_chunks_and_company(ForwardOverRanks(two, mine), mine.groups)
    assert torch.equal(ours, true)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_layers_that_are_computed_several_times(backend: str, two: Formed) -> None:
    mine = CPUModel(read_twin("nanbeige"), NO_FILES, "float32", positions=1024, backend=backend)
    ours = in_chunks_and_company(ForwardOverRanks(two, mine), mine.groups)
    if backend == "cpu":
        assert torch.equal(ours, one_worker(mine))
    else:
        assert torch.allclose(ours, one_worker(mine), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "tensor", "pipeline", "dtype", "threads"),
    [
        ("olmo3", 3, 1, "bfloat16", 2),
        ("qwen3-5-1", 2, 2, "float32", 2),
        ("cohere2", 1, 2, "bfloat16", 1),
        ("gemma3", 1, 3, "float32", 1),
        ("glm45", 2, 2, "bfloat16", 1),
        ("gemma4-alike", 1, 3, "float32", 2),
    ],
)
def test_other_layouts(case: str, tensor: int, pipeline: int, dtype: str, threads: int) -> None:
    mine = model(case, dtype)
    with Formed(tensor, pipeline) as formed:
        ours = in_chunks_and_company(ForwardOverRanks(formed, mine, threads=threads), mine.groups)
    assert torch.equal(ours, one_worker(mine))


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}], ids=str)
@pytest.mark.parametrize("case", ["granite", "olmoe"])
def test_quantised_on_load(case: str, options: dict[str, str], two: Formed) -> None:
    mine = model(case, "auto", **options)
    assert torch.equal(
        in_chunks_and_company(ForwardOverRanks(two, mine), mine.groups), one_worker(mine)
    )


def test_one_token_after_many(two: Formed) -> None:
    """Threads share the splits of long contexts, and fold them before ranks exchange them."""
    mine = model("llama-7-7-llama3-rope")
    tokens = np.random.default_rng(1).integers(0, SIZES["vocab_size"], 600)
    table = np.arange(38)

    def logits(forward: Any) -> torch.Tensor:
        for start, end in ((0, 400), (400, 598), (598, 600)):
            batch = Batch(tokens[start:end], [table], np.array([start]), np.array([end - start]))
            found = in_torch(forward.logits(batch, np.array([end - start - 1])))
        return found

    ours = logits(ForwardOverRanks(two, mine, blocks=40, threads=3))
    assert torch.equal(ours, logits(mine.forward(block_size=16, num_blocks=40, threads=1)))


def test_each_rank_has_a_part_of_the_weights_and_of_the_cache(two: Formed) -> None:
    mine = model("llama-yarn")
    halves = [each._decoder for each in ForwardOverRanks(two, mine).by_rank.values()]
    whole = mine.forward(block_size=16, num_blocks=32, threads=1)._decoder

    def held(decoder: Any) -> tuple[int, int]:
        matrices = {
            matrix.tiles.ctypes.data: matrix.size
            for phase in decoder.program.phases
            for matrix in phase.matrices
            if matrix is not None
        }
        return sum(matrices.values()), sum(each.nbytes for each in decoder.kv_blocks())

    weights, cache = held(whole)
    for part in map(held, halves):
        assert part[0] < 0.6 * weights
        assert part[1] == cache // 2


def test_a_group_that_is_over_ends_the_step(two: Formed) -> None:
    together = ForwardOverRanks(two, model("gemma"), threads=2)
    two.ranks[0].abandon()
    with pytest.raises(GroupLost):
        in_torch(
            together.by_rank[two.ranks[0]].logits(
                Batch(np.array([1, 2]), [np.arange(1)], np.array([0]), np.array([2])), np.array([1])
            )
        )
    two.ranks[0]._abandoned = False


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"intermediate_size": 60}, "inner dimension is 60: too little for 3 ranks"),
        ({"hidden_size": 32}, "the hidden size is 32"),
        ({"vocab_size": 33}, "the vocabulary is 33"),
    ],
)
def test_sizes_that_are_too_small_are_named(changed: dict[str, int], said: str) -> None:
    config = msgspec.structs.replace(read("llama-yarn"), **changed)
    mine = CPUModel(config, NO_FILES, "float32")
    with Formed(3) as formed, pytest.raises(StartupError, match=said):
        ForwardOverRanks(formed, mine)


def test_gates_of_the_attention_are_not_shared(two: Formed) -> None:
    """Also where no layer is recurrent, which is refused before that."""
    config = wide(read("llama-yarn"))
    gated = msgspec.structs.replace(config.layers[0].attention, output_gate=True)
    layers = tuple(msgspec.structs.replace(layer, attention=gated) for layer in config.layers)
    mine = CPUModel(msgspec.structs.replace(config, layers=layers), NO_FILES, "float32")
    with pytest.raises(StartupError, match="gates, which this backend computes on one rank"):
        ForwardOverRanks(two, mine)
