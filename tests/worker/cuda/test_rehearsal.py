"""Steps that launch what no other step had launched, on a simulated GPU after its rehearsal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock_kernels.triton.compilations import KernelTooLarge
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.forward import buckets
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.rehearsal import MediaSteps
from penstock_worker.forward.triton_build import TritonBuild
from penstock_worker.pooling.bodies import Inputs
from testing.model_configs import varied
from testing.pooling_models import load_pooling, save, sentence_files
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import small_setup
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import GROUPED
from tests.worker.models.family_cases import read
from tests.worker.quantised_cases import CASES as FORMATS
from tests.worker.quantised_experts import write_experts
from tests.worker.weights.test_weights import write_gguf

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

CONFIG = varied(GROUPED, num_layers=1, hidden_size=128, intermediate_size=256, head_dim=32)
BLOCKS, BLOCK = 400, 4
COUNTS = ([1], [3], [16], [17], [33], [65], [129], [300], [600], [1] * 8, [1, 5, 40], [1, 1, 9])
"""New tokens of each sequence, of steps that a server may have."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setattr(buckets, "MAX_GRAPHS", 2)
    with simulated(Device(1 << 30, computes=False, pace=1)) as made, torch.inference_mode():
        yield made


Further = Callable[[TritonBuild, np.ndarray], dict[str, Any]]
"""What a batch of so many tokens has besides."""


def compiled_late(
    device: Device, build: TritonBuild, further: Further = lambda *_: {}
) -> set[object]:
    """Kernels' names of what steps launch that the rehearsal doesn't. Each step comes twice: after
    nothing, and after 30 tokens."""
    build.rehearse()
    build.longest_decode()
    rehearsed = set(device.launched)
    forward = build(BLOCKS)
    for counts in map(np.array, COUNTS):
        for before in (0, 30):
            tables = [np.arange(-(-(before + count) // BLOCK)) for count in counts]
            tokens = np.ones(counts.sum(), np.int64)
            starts = np.full(len(counts), before)
            batch = Batch(tokens, tables, starts, counts, **further(build, counts))
            forward.logits(batch, np.cumsum(counts) - 1)
    return {key[0] for key in device.launched.keys() - rehearsed}  # type: ignore[index]


def build_of(
    files: WeightFiles | None = None, config: ModelConfig = CONFIG, **changes: Any
) -> TritonBuild:
    sizes = {"max_num_batched_tokens": 600, "max_model_len": 800}
    model, setup = small_setup(config, files, **(sizes | changes))
    recipe: Any = choose(model.prepared(), setup, 1)
    build: TritonBuild = recipe.build()
    return build


def test_a_kernel_that_the_gpu_cannot_launch_is_named_before_anything_is_served(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = build_of()

    def refused(*_: object, **__: object) -> None:
        raise KernelTooLarge(172_544, 166_912, "shared memory")

    monkeypatch.setattr(TritonBuild, "_profile_step", refused)
    with pytest.raises(StartupError, match=r"takes 172,544 bytes of shared memory, .* has 166,912"):
        build.rehearse()


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_packed_weights(kind: str, device: Device, tmp_path: Path) -> None:
    """From one row on, which a product divides, to as many as are unpacked."""
    files = write_gguf(tmp_path / "x.gguf", CONFIG, lambda _: kind)
    build = build_of(msgspec.structs.replace(files, dtype=kind))
    assert compiled_late(device, build) == set()
    assert {"_gguf_product", "_gguf_rows"} <= {key[0] for key in device.launched}  # type: ignore[index]


@pytest.mark.parametrize("name", ["FP8, per channel", "FP8, blocks of 128"])
def test_experts_in_fp8(name: str, device: Device, tmp_path: Path) -> None:
    """For few rows, for some and for many."""
    checkpoint = write_experts(tmp_path / "model", FORMATS[name], moe_intermediate_size=128)
    build = build_of(checkpoint.prepared.weights, checkpoint.config)
    assert compiled_late(device, build) == set()
    assert "_expert_fp8" in {key[0] for key in device.launched}  # type: ignore[index]


@pytest.mark.parametrize(
    ("config", "settings", "kernels"),
    [
        (CONFIG, {}, {"_shrink", "_expand", "_look_up"}),
        (CONFIG, {"lora_whole_matrices": True}, {"_replace_rows", "_replace_products"}),
        (read("qwen2-moe"), {"lora_experts": True}, {"_shrink_pairs", "_expand_pairs"}),
    ],
    ids=["factors", "whole", "experts"],
)
def test_adapters(
    config: ModelConfig, settings: dict[str, Any], kernels: set[str], device: Device
) -> None:
    """All rows have one, one of two, or some have none."""
    build = build_of(config=config, max_loras=2, max_lora_rank=8, **settings)

    def further(build: TritonBuild, counts: np.ndarray) -> dict[str, Any]:
        held = build.adapters
        assert held is not None
        two = held.blank, held.blank
        return {"adapters": BatchAdapters(two, np.arange(len(counts)) % 3 - 1 * (len(counts) > 2))}

    assert compiled_late(device, build, further) == set()
    assert kernels <= {key[0] for key in device.launched}  # type: ignore[index]


def test_rows_that_see_further(device: Device) -> None:
    steps = MediaSteps(sections=False, whole_spans=True)
    build = replace(build_of(), media=steps)

    def further(build: TritonBuild, counts: np.ndarray) -> dict[str, Any]:
        return {"media": steps.of(counts)}

    assert compiled_late(device, build, further) == set()


@pytest.mark.parametrize("invariant", [False, True])
def test_positions_of_three_numbers(invariant: bool, device: Device) -> None:
    """The model sees, and turns its rows as Qwen2-VL does; its prompts of text alone are tried,
    too."""
    rope = msgspec.structs.replace(CONFIG.ropes[0], sections=(8, 4, 4))
    config = msgspec.structs.replace(CONFIG, ropes=(rope,))
    steps = MediaSteps(sections=True, whole_spans=False)
    build = replace(build_of(config=config, batch_invariant=invariant), media=steps)

    def further(build: TritonBuild, counts: np.ndarray) -> dict[str, Any]:
        return {"media": steps.of(counts)}

    assert compiled_late(device, build, further) == set()
    assert compiled_late(device, build) == set()


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """Written before there is a simulated GPU, which transformers doesn't get along with."""
    folder = tmp_path / "m"
    save(folder, "BertModel", hidden_size=128, num_attention_heads=4, num_hidden_layers=1)
    return folder


@pytest.mark.parametrize("mode", ["mean_tokens", "max_tokens"])
def test_encoders(mode: str, bert: Path, device: Device, tmp_path: Path) -> None:
    """One that makes vectors, with tiles that depend on the number of rows."""
    sentence_files(bert, mode, normalize=False)
    worker = {"attention_backend": "triton", "device": "cuda", "batch_invariant": True}
    loaded = load_pooling(str(bert), tmp_path, worker=worker, budget=600, sequences=8)
    body: Any = loaded.runner._kind._pooler.body  # type: ignore[attr-defined]
    rehearsed = set(device.launched)
    for counts in COUNTS:
        lengths = [min(each, 70) for each in counts] * (1 + 5 * (max(counts) > 70))
        tokens = np.ones(sum(lengths), np.int64)
        body.compute(Inputs(tokens, tokens, lengths))
    assert device.launched.keys() == rehearsed
    loaded.runner.close()
