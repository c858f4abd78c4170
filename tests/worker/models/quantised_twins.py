"""Quantised checkpoints beside a file of what their weights mean, in float32."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from penstock.model.prepared_model import PreparedModel, WeightFiles
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import open_weights
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.parity import run_with_logits

POSITIONS = int(SIZES["max_position_embeddings"])
WANTED = 3


def logits_as_meant(prepared: PreparedModel, twin: Path, prompt: list[int]) -> Tensor:
    """Asserts that the checkpoint, unpacked, gives the same logits as `twin`, to the bit, by the
    reference and by the CPU kernels. Returns the latter's, [tokens, vocab]."""
    as_plain = WeightFiles(format="safetensors", files=(str(twin),), dtype="float32")
    for kind in (DecoderModel, CPUModel):
        found = []
        for files in (prepared.weights, as_plain):
            weights = open_weights(files, prepared.decoder, torch.float32)
            model = (
                DecoderModel(prepared.decoder, weights, POSITIONS)
                if kind is DecoderModel
                else CPUModel(prepared.decoder, files, "float32", positions=POSITIONS)
            )
            found.append(_logits(model, prompt))
        assert torch.equal(*found)
        assert found[0].std() > 0
    return found[0]


def logits_as_stored(prepared: PreparedModel, prompt: list[int]) -> Tensor:
    """Logits by the CPU kernels, which keep the checkpoint's levels; [tokens, vocab]."""
    model = CPUModel(
        prepared.decoder,
        prepared.weights,
        "auto",
        positions=POSITIONS,
        matmul_precision="high",
        kv_cache_dtype="float32",
    )
    return _logits(model, prompt)


def _logits(model: DecoderModel | CPUModel, prompt: list[int]) -> Tensor:
    ((_, logits),) = run_with_logits(model, [prompt], WANTED)
    return logits
