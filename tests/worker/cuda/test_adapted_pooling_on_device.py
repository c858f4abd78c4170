"""Adapters of pooling models on the CUDA kernels: an input's vector is that of transformers' model
with the adapter merged in, with its own bits whatever else is computed; so are scores of heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.protocol.common import Pooling
from testing.pooling_models import random_inputs, run, save
from tests.adapter_folders import random_factors, write_peft
from tests.worker.cuda.test_pooling_on_device import on_device
from tests.worker.pooling.test_adapters import (
    DECODER,
    MODERN,
    SIZES,
    check_vectors,
    factors_of,
    merged,
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

LORA = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 12}
LENGTHS = [3, 17, 1, 12]
ONE = {"num_hidden_layers": 1}
ALPHA = 9
OF_KIND = {"BertModel": SIZES, "ModernBertModel": MODERN, "Qwen3Model": DECODER}


@pytest.mark.parametrize("kind", ["BertModel", "ModernBertModel", "Qwen3Model"])
def test_vectors_of_layers_with_adapters(tmp_path: Path, kind: str) -> None:
    sizes: dict[str, Any] = OF_KIND[kind]
    model = save(tmp_path / "m", kind, **sizes | ONE)
    model.set_attn_implementation("eager")
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=True, lora=LORA, sequences=4)
    one, other = factors_of(model, 5, 1), factors_of(model, 12, 2)
    paths = [None, *(write_peft(tmp_path / "a", one, alpha=ALPHA),)]
    twins = [model, merged(model, one, ALPHA / 5)]
    if kind == "Qwen3Model":  # An embedding is changed, too.
        table = model.embed_tokens.weight
        ((down, up),) = random_factors({"embed_tokens": (48, 99)}, 12, 1, 0.3).values()
        twins.append(merged(model, other, ALPHA / 12))
        added = torch.from_numpy(up).double() @ torch.from_numpy(down).double()
        changed = table.double() + ALPHA / 12 * added.T
        twins[2].embed_tokens.weight.data = changed.float()
        other["embed_tokens"] = (down, up)
    else:
        twins.append(merged(model, other, ALPHA / 12))
    paths.append(write_peft(tmp_path / "b", other, alpha=ALPHA))
    inputs, chosen = random_inputs(LENGTHS), [0, 1, 2, 1]
    asked = Pooling("embed", normalize=False)
    crowd = check_vectors(loaded, kind, inputs, chosen, paths, twins)
    if kind == "Qwen3Model":
        adapters = [paths[each] for each in chosen]
        parts = run(loaded, inputs, asked, chunk=5, adapters=adapters)
        assert all(map(np.array_equal, parts, crowd))
    loaded.runner.close()


@pytest.mark.parametrize(
    ("kind", "settings", "inner", "outer"),
    [
        ("BertForSequenceClassification", SIZES, "bert.pooler.dense", "classifier"),
        ("Qwen3ForSequenceClassification", {**DECODER, "pad_token_id": 0}, "", "score"),
    ],
    ids=["bert", "qwen3"],
)
def test_heads_of_adapters(
    tmp_path: Path, kind: str, settings: dict[str, Any], inner: str, outer: str
) -> None:
    """A layer of the head is brought whole, another one is changed by factors."""
    model = save(tmp_path / "m", kind, **settings | ONE, num_labels=3)
    model.set_attn_implementation("eager")
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=True, lora=LORA)
    factors = factors_of(model, 5, 1, but=(outer,))
    assert (inner in factors) == bool(inner)
    random = np.random.default_rng(3)
    whole = {
        f"{outer}.{name}": random.standard_normal(tuple(each.shape)).astype(np.float32)
        for name, each in model.get_submodule(outer).named_parameters()
    }
    path = write_peft(tmp_path / "a", factors, alpha=ALPHA, whole=whole)
    twin = merged(model, factors, ALPHA / 5)
    for name, values in whole.items():
        twin.get_parameter(name).data = torch.from_numpy(values)
    inputs, adapters = random_inputs([14, 7, 12]), [path, None, path]
    asked = Pooling("classify", activate=False)
    crowd = run(loaded, inputs, asked, adapters=adapters)
    for tokens, which, found in zip(inputs, adapters, crowd, strict=True):
        with torch.inference_mode():
            wanted = (twin if which else model)(torch.tensor([tokens])).logits[0].numpy()
        assert np.abs(found - wanted).max() < 1e-3
        (alone,) = run(loaded, [tokens], asked, adapters=[which])
        assert np.array_equal(alone, found)
    loaded.runner.close()
