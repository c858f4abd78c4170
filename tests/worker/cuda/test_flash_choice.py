"""When FlashAttention 3 computes long chunks, for which a slow function of its interface stands in:
every reason against it, the fingerprint, and a whole worker with it on a simulated GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import KVGroup
from penstock.model.layer_spec import CrossAttentionSpec
from penstock_worker.attention import flash_choice
from penstock_worker.attention.flash_choice import choose_flash, layer_obstacle
from penstock_worker.attention.interface import CacheShape
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import DeviceRecipe
from testing.model_configs import varied
from tests.worker.checkpoints import tiny_files
from tests.worker.cuda import flash_attn_stand_in as stand_in
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import COLLECTING, Machine, small_setup
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import GROUPED, batch, prompt
from tests.worker.cuda.test_on_simulated_gpu import ahead, jobs
from tests.worker.models.family_cases import read

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

HALF = torch.bfloat16
TWO_HEADS = KVHeadsSpec(count=2, size=16)


@pytest.mark.parametrize(
    ("spec", "heads", "group", "reason"),
    [
        (AttentionSpec(), TWO_HEADS, KVGroup(), None),
        (AttentionSpec(window=700), TWO_HEADS, KVGroup(), None),
        (AttentionSpec(window=70), TWO_HEADS, KVGroup(window=70), "window has passed"),
        (AttentionSpec(chunk=70), TWO_HEADS, KVGroup(chunk=70), "chunks of positions"),
        (AttentionSpec(sinks=True), TWO_HEADS, KVGroup(), "sinks"),
        (AttentionSpec(), KVHeadsSpec(count=1, size=264), KVGroup(), "head's size is 264"),
        (AttentionSpec(), KVHeadsSpec(count=1, size=36), KVGroup(), "head's size is 36"),
    ],
)
def test_layers_that_it_serves(
    spec: AttentionSpec, heads: KVHeadsSpec, group: KVGroup, reason: str | None
) -> None:
    found = layer_obstacle(spec, heads, group)
    assert found is reason is None or (found and reason and reason in found)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is the package."""
    monkeypatch.setitem(sys.modules, flash_choice.MODULE, stand_in)


def reason_for(
    monkeypatch: pytest.MonkeyPatch,
    config: ModelConfig = GROUPED,
    *,
    capability: tuple[int, int] = (9, 0),
    dtype: torch.dtype = HALF,
    cache: torch.dtype = HALF,
    device: str = "cuda",
    block: int = 16,
    **changes: Any,
) -> str:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    _, setup = small_setup(config, None, dtype="bfloat16", **changes)
    shape = CacheShape.of(config, block, cache)
    found = choose_flash(setup, config, shape, dtype, torch.device(device))
    assert found.library is None
    assert found.numerics == ""
    return found.reason


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"flash_attention_3": False}, "flash_attention_3 is off"),
        ({"batch_invariant": True}, "batch_invariant is on"),
        ({"device": "cpu"}, "it needs a GPU"),
        ({"capability": (8, 0)}, "compute capability 9.x, and the GPU has 8.0"),
        ({"capability": (10, 0)}, "compute capability 9.x, and the GPU has 10.0"),
        ({"dtype": torch.float32}, "float32 and bfloat16"),
        ({"dtype": torch.float32, "cache": torch.float32}, "float32 and float32"),
        ({"cache": torch.float8_e4m3fn}, "bfloat16 and float8_e4m3fn"),
        ({"cache": torch.float16}, "bfloat16 and float16"),
        ({"block": 64}, "kv_block_size is 64; it must be at most 32"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_workers_that_it_does_not_serve(
    asked: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason in reason_for(monkeypatch, **asked)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (read("deepseek-v2-lite"), "attention is over latents"),
        (varied(GROUPED, cross_attention=CrossAttentionSpec(rows=8)), "has an encoder"),
        (varied(GROUPED, head_dim=12), "head's size is 12"),
    ],
    ids=["latents", "encoder", "heads"],
)
@pytest.mark.usefixtures("installed")
def test_models_that_it_does_not_serve(
    config: ModelConfig, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason in reason_for(monkeypatch, config)


def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flash_choice.MODULE not in sys.modules
    assert "isn't installed" in reason_for(monkeypatch)
    assert flash_choice.MODULE not in sys.modules


def test_a_package_of_another_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / f"{flash_choice.MODULE}.py"
    broken.write_text("raise OSError('undefined symbol: _ZN3c10')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "can't be imported: OSError: undefined symbol" in reason_for(monkeypatch)


def test_a_package_of_another_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType(flash_choice.MODULE)
    other.__spec__ = stand_in.__spec__
    monkeypatch.setitem(sys.modules, flash_choice.MODULE, other)
    assert "can't be imported: AttributeError" in reason_for(monkeypatch)
    vars(other)[flash_choice.FUNCTION] = lambda q, k_cache, v_cache, block_table, causal: q
    assert "has no cache_seqlens, page_table, cu_seqlens_q" in reason_for(monkeypatch)


@pytest.mark.usefixtures("installed")
def test_nothing_is_used_that_fails_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> str:
        return "a trial failed"

    monkeypatch.setattr(flash_choice, "trial", failing)
    assert reason_for(monkeypatch) == "a trial failed"


def recipe(**changes: Any) -> DeviceRecipe:
    model, setup = small_setup(GROUPED, None, dtype="bfloat16", **changes)
    made = choose(model.prepared(), setup, 1)
    assert isinstance(made, DeviceRecipe)
    return made


def test_the_fingerprint_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its version; and without it, it is what it ever was."""
    with simulated(Device(1 << 30)):
        without = recipe().fingerprint
        monkeypatch.setitem(sys.modules, flash_choice.MODULE, stand_in)
        assert recipe().fingerprint == f"{without} long chunks FlashAttention 3 of no version"
        assert recipe(flash_attention_3=False).fingerprint == without
        assert "FlashAttention" not in recipe(batch_invariant=True).fingerprint
        monkeypatch.setattr(flash_choice, "_version", lambda: "3.0.0")
        assert recipe().fingerprint == f"{without} long chunks FlashAttention 3 3.0.0"


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_batch_invariance_never_uses_it() -> None:
    with simulated(Device(1 << 30)) as device, stand_in.counted() as calls:
        made = Machine(device, GROUPED, dtype="bfloat16", batch_invariant=True)
        made.runner.close()
        assert not calls


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_worker_waits_for_nothing_and_gives_what_ours_gives(tmp_path: Path) -> None:
    """Prompts whose chunks come beside decodes, two steps in flight, without graphs."""
    files = tiny_files(tmp_path, GROUPED)
    rows: dict[bool, Any] = {}
    for used in (True, False):
        with simulated(Device(1 << 30, pace=1)) as device, stand_in.counted() as calls:
            options = {"dtype": "bfloat16", "flash_attention_3": used, "enforce_eager": True}
            made = Machine(device, GROUPED, files, **options)
            assert bool(calls) == used  # In the trial, and in the rehearsed steps.
            before = len(calls)
            long = prompt(GROUPED, 30, 1), list(range(8)), 0
            with torch.inference_mode():
                step = batch(long, (prompt(GROUPED, 3, 2), [9], 0))
                rows[used] = made.parts.forward.logits(step, np.arange(33)).cpu()
            assert (len(calls) - before) == used * GROUPED.num_layers
            if used:
                some = jobs()[-3:-1]
                assert [job.error for job in ahead(made).run(some)] == [None] * len(some)
                assert made.waited <= COLLECTING
            made.runner.close()
    assert (rows[True] - rows[False]).abs().max() < 0.05 * rows[False].abs().max()
