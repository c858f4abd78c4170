"""Adapters of families whose files have rows in another order than ours, or several matrices in
one: what transformers computes with the adapter merged in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.adapter_folders import random_factors, write_peft
from tests.worker.adapters.rig import AdapterRig, Sequence_
from tests.worker.models.family_cases import CASES
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_parity_on_cpu import cpu_model

CHANGED = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_up_proj")

MORE = {"llama4": {"attention_chunk_size": 4096}}
"""Wider than contexts are long, so that layers are in one KV group."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lengths", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("case", ["llama4", "phi3", "cohere"])
def test_equals_transformers_with_the_adapter_merged_in(
    case: str, tmp_path: Path, *, lengths: bool
) -> None:
    family, settings = CASES[case]
    theirs = make_theirs(family, settings | MORE.get(case, {}))
    theirs.save_pretrained(tmp_path / "m")
    shapes = {
        name: (each.out_features, each.in_features)
        for name, each in theirs.named_modules()
        if isinstance(each, torch.nn.Linear) and name.endswith(CHANGED)
    }
    factors, random = random_factors(shapes, 5, 1, 0.1), np.random.default_rng(2)
    magnitudes = {
        name: random.uniform(0.5, 2, outputs).astype(np.float32)
        for name, (outputs, _) in shapes.items()
    }
    path = write_peft(tmp_path / "a", factors, alpha=8, magnitudes=magnitudes if lengths else None)
    tokens = random.integers(1, theirs.config.vocab_size, 40).tolist()
    rig = AdapterRig(cpu_model(tmp_path / "m"))
    (base,), (found,) = (rig.logits([Sequence_(tokens, each)]) for each in (None, rig.hold(path)))
    for name, (down, up) in factors.items():
        weight = theirs.get_submodule(name).weight
        added = torch.from_numpy(up).double() @ torch.from_numpy(down).double()
        changed = weight.detach().double() + 8 / 5 * added
        if lengths:
            wanted = torch.from_numpy(magnitudes[name]).double()
            changed *= (wanted / torch.linalg.norm(changed, dim=1))[:, None]
        weight.data = changed.float()
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0]
    error = float((found - expected).abs().max())
    assert error < 2e-3
    assert (base - expected).abs().max() > 20 * error
