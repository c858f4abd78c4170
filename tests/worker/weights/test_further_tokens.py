"""Embeddings of further tokens follow the others, and the head never predicts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import UnsupportedModel
from penstock_worker.weights.further_tokens import FURTHER, add_further_tokens
from penstock_worker.weights.stored import StoredTensor
from tests.families.test_molmo_configs import read

CONFIG = read(
    text_config__vocab_size=5,
    text_config__additional_vocab_size=2,
    text_config__hidden_size=4,
    adapter_config__text_hidden_size=4,
    image_patch_id=6,
)


def stored(name: str, rows: int, columns: int = 4, kind: str = "F32") -> StoredTensor:
    values = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    data = values.astype(np.float16) if kind == "F16" else values
    return StoredTensor(name, (rows, columns), kind, data.view(np.uint8).reshape(-1))


def tensors(kind: str = "F32", **changes: StoredTensor | None) -> dict[str, StoredTensor]:
    """changes: `head`, `embedding` or `further`; None: there is none."""
    found = {
        "embedding": ("embed_tokens.weight", stored("wte.embedding", 5, kind=kind)),
        "further": (FURTHER, stored("wte.new_embedding", 2, kind=kind)),
        "head": ("lm_head.weight", stored("lm_head.weight", 5, kind=kind)),
    }
    given = {name: changes.get(key, own) for key, (name, own) in found.items()}
    return {name: each for name, each in given.items() if each is not None}


def numbers(one: StoredTensor) -> torch.Tensor:
    found = torch.empty(one.shape)
    one.read_into(found)
    return found


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_both_parts_are_one(kind: str) -> None:
    before, after = tensors(kind), tensors(kind)
    add_further_tokens(after, CONFIG)
    parts = [numbers(before[name]) for name in ("embed_tokens.weight", FURTHER)]
    assert torch.equal(numbers(after["embed_tokens.weight"]), torch.cat(parts))
    hidden = torch.randn(3, 4)
    head, bias = numbers(after["lm_head.weight"]), numbers(after["lm_head.bias"])
    logits = hidden @ head.t() + bias
    own = hidden @ numbers(before["lm_head.weight"]).t()
    assert torch.equal(logits.softmax(1)[:, :5], own.softmax(1))
    assert (logits.softmax(1)[:, 5:] == 0).all()
    assert logits.log_softmax(1).isfinite().all()
    part = torch.empty(3, 4)
    after["embed_tokens.weight"].read_part_into(part, (range(4, 7), range(4)))
    assert torch.equal(part, torch.cat(parts)[4:])


def test_others_stay_as_they_are() -> None:
    plain = tensors(further=None)
    add_further_tokens(plain, CONFIG)
    assert plain.keys() == tensors(further=None).keys()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head": None}, "lacks lm_head.weight"),
        ({"embedding": None}, "lacks embed_tokens.weight"),
        ({"further": stored("wte.new_embedding", 3)}, "wte.embedding has shape"),
        ({"head": stored("lm_head.weight", 7)}, "lm_head.weight has shape"),
        ({"further": stored("wte.new_embedding", 2, 5)}, "wte.new_embedding has shape"),
        ({"further": stored("wte.new_embedding", 2, kind="F16")}, "stored as F16"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        add_further_tokens(tensors(**changes), CONFIG)
