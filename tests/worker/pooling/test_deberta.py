"""DeBERTa's distances: against transformers alone, in padded company and for all their variants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2 import modeling_deberta_v2 as theirs

from penstock.errors import StartupError, UnsupportedModel
from penstock.prepare import prepare
from penstock.protocol.common import Pooling
from penstock_kernels.reference.disentangled import distance_rows
from testing.pooling_models import DEBERTA, load_pooling, random_inputs, run, save

KERNEL_SIZES = {"hidden_size": 48, "intermediate_size": 72, "num_attention_heads": 3}
ROWS = Pooling("token_embed", normalize=False)
LENGTHS = [1, 2, 31, 7, 64, 33, 80]
VARIANTS: dict[str, dict[str, Any]] = {
    "matrices of their own": {"share_att_key": False},
    "keys of distances alone": {"pos_att_type": ["c2p"]},
    "queries of distances alone": {"pos_att_type": ["p2c"], "share_att_key": False},
    "no shared rows": {"position_buckets": -1, "max_relative_positions": 20},
    "positions besides": {"position_biased_input": True, "type_vocab_size": 2},
    "a table as it is": {"norm_rel_ebd": "none"},
}
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "gelu": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "tanh": {"conv_kernel_size": 3},
}


def _save(folder: Path, **settings: Any) -> Any:
    return save(folder, "DebertaV2Model", **{**KERNEL_SIZES, **DEBERTA, **settings})


def _loaded(folder: Path, backend: str, **settings: Any) -> Any:
    worker = {"attention_backend": backend}
    return load_pooling(str(folder), folder.parent, worker=worker, **settings)


def _hidden(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).last_hidden_state[0].numpy()


def _compare(model: Any, loaded: Any, inputs: list[list[int]]) -> None:
    """Hidden states, and an input's bits alone and in any company."""
    crowd, backwards = run(loaded, inputs, ROWS), run(loaded, inputs[::-1], ROWS)[::-1]
    for tokens, one, other in zip(inputs, crowd, backwards, strict=True):
        assert np.abs(one - _hidden(model, tokens)).max() < 2e-4
        (alone,) = run(loaded, [tokens], ROWS)
        assert np.array_equal(alone, one), f"{len(tokens)} tokens in company"
        assert np.array_equal(alone, other), f"{len(tokens)} tokens in another order"
    loaded.runner.close()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_transformers(tmp_path: Path, variant: str, backend: str) -> None:
    model = _save(tmp_path / "m", **VARIANTS[variant])
    _compare(model, _loaded(tmp_path / "m", backend), random_inputs(LENGTHS))


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_convolution_behind_the_first_layer(tmp_path: Path, kind: str) -> None:
    """Of the second version's largest models."""
    model = _save(tmp_path / "m", **CONVOLUTIONS[kind])
    with pytest.raises(StartupError, match="a convolution of embeddings"):
        _loaded(tmp_path / "m", "cpu")
    _compare(model, _loaded(tmp_path / "m", "auto"), random_inputs(LENGTHS))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_batch_equals_transformers_padded_one(tmp_path: Path, backend: str) -> None:
    """Inputs of different lengths: transformers pads and masks, here none sees another."""
    model = _save(tmp_path / "m", **(CONVOLUTIONS["gelu"] if backend == "reference" else {}))
    inputs = random_inputs([3, 40, 17])
    tokens, mask = torch.zeros(2, 3, 40, dtype=torch.long)
    for row, each in enumerate(inputs):
        tokens[row, : len(each)] = torch.tensor(each)
        mask[row, : len(each)] = 1
    with torch.inference_mode():
        wanted = model(tokens, attention_mask=mask).last_hidden_state.numpy()
    loaded = _loaded(tmp_path / "m", backend)
    for row, found in enumerate(run(loaded, inputs, ROWS)):
        assert np.abs(found - wanted[row, : len(inputs[row])]).max() < 2e-4
    loaded.runner.close()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_releases_distances(tmp_path: Path, backend: str) -> None:
    """Inputs whose keys take several splits, with a table as large as releases have."""
    sizes = {"max_position_embeddings": 512, "position_buckets": 256}
    model = _save(tmp_path / "m", **sizes)
    loaded = _loaded(tmp_path / "m", backend, threads=2)
    _compare(model, loaded, random_inputs([512, 5, 300, 129]))


@pytest.mark.parametrize(("span", "farthest"), [(256, 512), (16, 80), (4, 4096), (256, 4096)])
def test_rows_of_distances_equal_transformers(span: int, farthest: int) -> None:
    longest = 700
    distance = torch.arange(1 - longest, longest)
    wanted = theirs.make_log_bucket_position(distance, span, farthest).long()
    found = distance_rows(span, farthest, longest)
    assert torch.equal(found, (wanted + span).clamp(0, 2 * span - 1))
    assert bool((found.diff() >= 0).all())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no distances": ({"relative_attention": False}, "without relative_attention"),
    "another kind": ({"pos_att_type": ["p2p"]}, "c2p, p2c or both is needed"),
    "a wide convolution": ({"conv_kernel_size": 5}, "3, or 0 is needed"),
    "groups": ({"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups 2 is not served"),
    "small embeddings": ({"embedding_size": 24}, "embedding_size 24 is not served; 48 is"),
    "more rows than distances": ({"position_buckets": 512}, "less than twice the farthest"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, case: str) -> None:
    settings, reason = REFUSED[case]
    _save(tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    with pytest.raises(UnsupportedModel, match=reason):
        prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))


def test_the_makers_way_of_listing_kinds(tmp_path: Path) -> None:
    """microsoft/deberta-v3-base says them in one text."""
    model = _save(tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pos_att_type": "p2c|c2p"}))
    _compare(model, _loaded(tmp_path / "m", "cpu"), random_inputs([9, 30]))
