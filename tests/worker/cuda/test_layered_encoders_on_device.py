"""Encoders with a decoder's layers and with rotary positions over Triton's kernels: against
transformers, and themselves in other company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import StartupError
from penstock.protocol.common import Pooling, TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from testing.pooling_models import (
    cosine_distance,
    load_pooling,
    random_inputs,
    save,
    sentence_files,
)
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.test_pooling_on_device import (
    EMBED,
    TOKENS,
    check_company,
    last_hidden,
    on_device,
)
from tests.worker.pooling import test_gte as gte
from tests.worker.pooling.test_adapters import MODERN

pytestmark = pytest.mark.timeout(240)

LENGTHS = [1, 41, 6]
"""The second has several tiles, and tokens that no window reaches from its ends."""
KINDS: dict[str, dict[str, Any]] = {
    # A layer that sees all of an input, and one with a window.
    "ModernBertModel": {**MODERN, "local_attention": 12, "num_hidden_layers": 2},
    # Norms of heads, heads that share keys, a scale, and rows that are multiplied.
    "Gemma3TextModel": {
        "use_bidirectional_attention": True,
        "sliding_window": 16,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


def model_of(folder: Path, kind: str, **more: Any) -> Any:
    model = save(folder, kind, **KINDS[kind] | more)
    model.set_attn_implementation("eager")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_equal_transformers(tmp_path: Path, kind: str) -> None:
    model = model_of(tmp_path / "m", kind)
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=True, budget=48)
    inputs = random_inputs(LENGTHS)
    for tokens, vectors in zip(inputs, check_company(loaded, inputs, TOKENS), strict=True):
        assert np.abs(vectors - last_hidden(model, tokens)).max() < 2e-4
    loaded.runner.close()


def test_in_bfloat16(tmp_path: Path) -> None:
    model = model_of(tmp_path / "m", "ModernBertModel")
    settings = {"dtype": "bfloat16", "budget": 20}
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=True, **settings)
    inputs = random_inputs([14, 3, 3])
    for tokens, vectors in zip(inputs, check_company(loaded, inputs, TOKENS), strict=True):
        assert cosine_distance(vectors, last_hidden(model, tokens)) < 1e-3
    loaded.runner.close()


def test_a_classifier(tmp_path: Path) -> None:
    """Its head has a norm."""
    kind = "ModernBertForSequenceClassification"
    settings = {**MODERN, "num_hidden_layers": 1, "classifier_bias": True, "norm_bias": True}
    model = save(tmp_path / "m", kind, num_labels=3, classifier_pooling="mean", **settings)
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=True, budget=20)
    inputs = random_inputs([12, 5, 3])
    scores = check_company(loaded, inputs, Pooling("classify"))
    for tokens, found in zip(inputs, scores, strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([tokens])).logits[0].softmax(0).numpy()
        assert np.abs(found - wanted).max() < 1e-4
    loaded.runner.close()


def test_gte_equals_an_obvious_model(tmp_path: Path) -> None:
    config = gte.CONFIG | gte.CASES["gte-multilingual"]
    weights = gte.tensors(config)
    gte.write(tmp_path / "m", config, weights)
    sentence_files(tmp_path / "m", "cls_token", normalize=False)
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=True, budget=48)
    inputs = random_inputs(LENGTHS)
    for tokens, vectors in zip(inputs, check_company(loaded, inputs, TOKENS), strict=True):
        assert np.abs(vectors - gte.model(config, weights, tokens).numpy()).max() < 2e-4
    loaded.runner.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_waits_for_nothing(tmp_path: Path, kind: str) -> None:
    """On a simulated GPU, with shapes only. What a step launches was launched, and so compiled,
    when the worker loaded."""
    model_of(tmp_path / "m", kind)
    worker = {"attention_backend": "triton", "device": "cuda"}
    with simulated(Device(1 << 30, computes=False, pace=1)) as device:
        loaded = load_pooling(str(tmp_path / "m"), tmp_path, worker=worker, budget=48, sequences=3)
        inputs = random_inputs(LENGTHS)
        admitted = [
            NewSequence(slot, tokens, len(tokens), 0, TokenSampling(0), [slot], None, EMBED)
            for slot, tokens in enumerate(inputs)
        ]
        work = [SlotWork(slot, 0, len(tokens)) for slot, tokens in enumerate(inputs)]
        waits, compiled = len(device.waits), set(device.launched)
        loaded.runner.begin(Plan(1, 0, [], admitted, work))
        assert device.waits[waits:] == []
        assert {"_attend_inputs", "_rope_write"} <= {key[0] for key in device.launched}
        assert set(device.launched) == compiled
        loaded.runner.close()


def test_heads_that_are_too_large_are_named(tmp_path: Path) -> None:
    size = {"hidden_size": 48, "num_attention_heads": 1, "num_key_value_heads": 1}
    more = {"head_dim": 320, "layer_types": ["full_attention"], "num_hidden_layers": 1}
    model_of(tmp_path / "m", "Gemma3TextModel", **size | more)
    with pytest.raises(StartupError, match="a head's size is 320, over 256"):
        on_device(str(tmp_path / "m"), tmp_path)
