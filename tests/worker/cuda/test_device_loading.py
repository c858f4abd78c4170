"""Which backend and device a setup gets, and what a device's runner is made of."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import RankGroup, Setup
from penstock_worker.forward import triton
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import DeviceRecipe, Unable
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.loading.device import load_on_device
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.sampler import SampleRequest
from testing.model_configs import varied
from tests.interpreted_triton import DEVICE
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.small_models import GROUPED, batch
from tests.worker.cuda.test_device_weights import NO_FILES

ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
GROUP = RankGroup(tensor=2, pipeline=1, rank=0, rendezvous="127.0.0.1:1", number=1)


def prepared(config: ModelConfig = GROUPED) -> PreparedModel:
    return CPUModel(config, NO_FILES, "auto").prepared()


def setup_of(**changes: Any) -> Setup:
    base = CPUModel(GROUPED, NO_FILES, "float32", backend="triton").setup(block_size=4)
    small = msgspec.structs.replace(
        base,
        load_format="dummy",
        max_num_seqs=2,
        max_num_batched_tokens=6,
        max_model_len=16,
        num_kv_blocks=None,
        kv_memory_fraction=0.3,
    )
    return msgspec.structs.replace(small, **changes)


@ON_CPU
def test_an_fp8_cache_wants_a_gpu_that_has_the_type(
    pretend_gpu: Callable[[str, tuple[int, int]], None],
) -> None:
    pretend_gpu("A100", (8, 0))
    triton.recipe(prepared(GROUPED), setup_of(), 1)
    with pytest.raises(StartupError, match=r"kv_cache_dtype is fp8, .*; cuda: A100 has 8\.0"):
        triton.recipe(prepared(GROUPED), setup_of(kv_cache_dtype="fp8"), 1)


@ON_CPU
def test_a_gpu_that_is_not_there() -> None:
    for backend in ("auto", "triton", "cpu"):
        with pytest.raises(StartupError, match=r"device is 'cuda', but torch .* finds no GPU"):
            choose(prepared(), setup_of(device="cuda", attention_backend=backend), 1)
    with pytest.raises(StartupError, match="'tpu'; allowed are auto, cpu, cuda"):
        choose(prepared(), setup_of(device="tpu"), 1)


@ON_CPU
def test_auto_stays_on_a_cpu_where_there_is_no_gpu() -> None:
    assert choose(prepared(), setup_of(attention_backend="auto"), 1).backend == "reference"


def test_a_backend_of_the_cpu_is_not_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(StartupError, match=r"cpu computes on the CPU, .* allowed are auto, triton"):
        choose(prepared(), setup_of(device="cuda", attention_backend="cpu"), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_cache_dtype": "int8"}, "'int8'; allowed are auto, float32, bfloat16, float16, fp8"),
        ({"dtype": "int8"}, "'int8'; allowed are auto, float32, bfloat16, float16"),
    ],
)
def test_unknown_dtypes_are_refused_with_those_allowed(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        choose(prepared(), setup_of(**changes), 1)


def test_heads_that_the_kernels_have_no_tile_for() -> None:
    config = varied(GROUPED, num_heads=34)
    with pytest.raises(Unable, match="17 query heads share a KV head; at most 16 can"):
        triton.recipe(prepared(config), setup_of(), 1)


def test_numerics_name_all_that_bits_depend_on() -> None:
    plain = choose(prepared(), setup_of(), 1).fingerprint
    assert plain.startswith("triton ")
    for change in (
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "fp8"},
        {"batch_invariant": True},
        {"quantization": "int4"},
    ):
        assert choose(prepared(), setup_of(**change), 1).fingerprint != plain
    assert "float8_e4m3fn" in choose(prepared(), setup_of(kv_cache_dtype="fp8"), 1).fingerprint


@dataclass
class Sampler:
    """In place of the sampler: notes what it was asked."""

    device: torch.device
    vocab: int
    max_slots: int
    batch_invariant: bool
    rows: list[tuple[int, ...]] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)

    def warm_up(self, logits: Tensor) -> None:
        """Has nothing to compile."""

    def launch(self, logits: Tensor, asks: list[SampleRequest], slots: list[int]) -> Sampler:
        assert len(asks) == len(slots) == self.max_slots
        self.rows.append(tuple(logits.shape))
        return self

    def sampled(self) -> list[Any]:
        return []

    def forget(self, slot: int) -> None:
        self.forgotten.append(slot)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference products, and no sampling."""
    module = ModuleType("penstock_worker.sampler.device")
    module.DeviceSampler = Sampler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(triton, "_ops", lambda *_: REFERENCE)


class Fewer(Ranks):
    """Another rank has less room."""

    def least(self, values: list[int]) -> list[int]:
        return [5, 2]


@pytest.mark.usefixtures("stand_ins")
def test_parts_fit_together_after_the_largest_steps() -> None:
    setup = setup_of(host_kv_bytes=30_000)
    recipe = choose(prepared(), setup, 1)
    assert isinstance(recipe, DeviceRecipe)
    assert recipe.device.type == DEVICE.type
    with torch.inference_mode():
        parts = load_on_device(recipe, setup, GROUPED.vocab_size)
        fewer = load_on_device(recipe, setup, GROUPED.vocab_size, Fewer())
        assert (fewer.blocks, fewer.copies.host_blocks) == (5, 2)
        assert not parts.sampler.batch_invariant
        assert parts.sampler.rows == [(2, 97), (2, 97)]
        assert parts.sampler.forgotten == [0, 1, 0, 1]
        # No more than could be in use: two sequences of 16 tokens, in blocks of 4.
        assert parts.blocks == 8
        assert parts.copies.device_bytes == 8 * recipe.block_bytes
        assert parts.copies.host_blocks == 30_000 // recipe.block_bytes
        logits = parts.forward.logits(batch(([3, 4], [7], 0)), np.array([1]))
    assert logits.isfinite().all()
    assert parts.forward.newest.shape == (2,)


@pytest.mark.usefixtures("stand_ins")
def test_a_pool_larger_than_the_memory() -> None:
    setup = setup_of(num_kv_blocks=1 << 40)
    recipe = choose(prepared(), setup, 1)
    with torch.inference_mode(), pytest.raises(StartupError, match="num_kv_blocks is 1099511"):
        load_on_device(recipe, setup, GROUPED.vocab_size)
