"""A row with an adapter has the same bits alone, crowded and in chunks; one without has those of a
model that knows no adapters; and the numbers are those of a model with the adapter merged in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.model.prepared_model import WeightFiles
from tests.adapter_folders import write_peft
from tests.worker.adapters.rig import (
    COMPUTED,
    RANKS,
    SMALL,
    AdapterRig,
    Sequence_,
    factors_of,
    logits_of,
    merged,
)
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel

ALPHA = 12.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> WeightFiles:
    return tiny_files(tmp_path_factory.mktemp("model"), SMALL)


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, SMALL.vocab_size, count).tolist()


@pytest.mark.parametrize(
    ("backend", "dtype", "quantization"),
    COMPUTED,
)
def test_an_adapters_bits_are_the_same_alone_crowded_and_in_chunks(
    files: WeightFiles, tmp_path: Path, backend: str, dtype: str, quantization: str
) -> None:
    model = CPUModel(SMALL, files, dtype, backend=backend, quantization=quantization)
    rig = AdapterRig(model)
    held = []
    for number, rank in enumerate(RANKS):
        # Not all change the same modules.
        names = [(), ("q_proj", "v_proj"), ("down_proj", "k_proj"), ("gate_proj",)][number % 4]
        folder = tmp_path / str(number)
        held.append(
            rig.hold(write_peft(folder, factors_of(SMALL, rank, number, names), alpha=ALPHA))
        )
    counts = [1, 2, 3, 7, 13, 20, 29, 33, 40]
    crowd = [
        Sequence_(tokens_of(at, counts[at % len(counts)]), held[at % 8] if at % 5 else None)
        for at in range(24)
    ]
    alone = [rig.logits([each])[0] for each in crowd]
    for together in (rig.logits(crowd), rig.logits(crowd, chunk=5)):
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one, other)
    without = replace(rig.model, max_loras=0)
    forward = without.forward(block_size=16, num_blocks=128, threads=2)
    for each, one in zip(crowd, alone, strict=True):
        (base,) = logits_of(forward, [Sequence_(each.tokens)])
        assert torch.equal(base, one) == (each.adapter is None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_every_instruction_set(isa: str, files: WeightFiles, tmp_path: Path, dtype: str) -> None:
    rig = AdapterRig(CPUModel(SMALL, files, dtype))
    held = [
        rig.hold(write_peft(tmp_path / str(rank), factors_of(SMALL, rank, rank), alpha=ALPHA))
        for rank in (5, 40)
    ]
    crowd = [Sequence_(tokens_of(at, 3 + 5 * at), (*held, None)[at % 3]) for at in range(6)]
    together = rig.logits(crowd)
    exact = AdapterRig(CPUModel(SMALL, files, "float32", backend="reference"))
    theirs = [exact.hold(tmp_path / str(rank)) for rank in (5, 40)]
    for at, (each, one) in enumerate(zip(crowd, together, strict=True)):
        assert torch.equal(rig.logits([each])[0], one)
        (true,) = exact.logits([replace(each, adapter=(*theirs, None)[at % 3])])
        assert torch.allclose(one, true, rtol=0, atol=1e-3 if dtype == "float32" else 1.0)


@pytest.mark.parametrize(
    ("backend", "dtype"), [("reference", "float32"), ("cpu", "float32"), ("cpu", "bfloat16")]
)
def test_as_a_model_with_the_adapter_merged_in(
    files: WeightFiles, tmp_path: Path, backend: str, dtype: str
) -> None:
    rig = AdapterRig(CPUModel(SMALL, files, dtype, backend=backend))
    exact = CPUModel(SMALL, files, "float32", backend="reference")
    for rank in (4, 17, 64):
        factors = factors_of(SMALL, rank, rank, size=0.08)
        held = rig.hold(write_peft(tmp_path / str(rank), factors, alpha=ALPHA))
        whole = merged(files, factors, ALPHA / rank, tmp_path / f"{rank}.safetensors")
        sequence = Sequence_(tokens_of(rank, 40))
        expected = logprobs(replace(exact, weights=whole), sequence)
        base = logprobs(exact, sequence)
        (rounded,) = rig.logits([sequence])
        (found,) = rig.logits([replace(sequence, adapter=held)])
        rounding = float((rounded.log_softmax(-1) - base).abs().max())
        error = float((found.log_softmax(-1) - expected).abs().max())
        assert error < max(2e-4, 2 * rounding)
        assert (base - expected).abs().max() > 10 * error


def logprobs(model: CPUModel, sequence: Sequence_) -> torch.Tensor:
    forward = model.forward(block_size=16, num_blocks=16, threads=1)
    return logits_of(forward, [sequence])[0].log_softmax(-1)
