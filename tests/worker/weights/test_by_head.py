"""Rows that a file has head by head."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from penstock.errors import UnsupportedModel
from penstock.model.layer_spec import LayerSpec
from penstock.model.recurrent_spec import GatedDeltaSpec
from penstock_worker.weights.names import from_hub, with_head_from_hub
from penstock_worker.weights.rows_by_head import of_kv_heads, things_apart
from penstock_worker.weights.stored import StoredTensor
from tests.worker.checkpoints import TINY

DELTA = LayerSpec(
    recurrent=GatedDeltaSpec(key_heads=2, value_heads=4, key_dim=2, value_dim=3, kernel=4)
)
CONFIG = msgspec.structs.replace(TINY, num_heads=2, head_dim=2, layers=(DELTA,))


def stored(rows: int, columns: int = 1) -> StoredTensor:
    values = np.arange(rows, dtype=np.float32).repeat(columns)
    return StoredTensor("x.weight", (rows, columns), "F32", values.view(np.uint8))


@pytest.mark.parametrize(
    ("module", "rows"),
    [
        ("self_attn.q_and_gate_proj", [0, 1, 4, 5, 2, 3, 6, 7]),
        (
            "recurrent.in_proj_qkvz",
            [
                *(0, 1, 16, 17),  # queries of both key heads
                *(2, 3, 18, 19),
                *(*range(4, 10), *range(20, 26)),  # values of two heads each
                *(*range(10, 16), *range(26, 32)),
            ],
        ),
        ("recurrent.in_proj_ba", [0, 1, 4, 5, 2, 3, 6, 7]),
    ],
)
def test_all_heads_of_a_thing_come_together(module: str, rows: list[int]) -> None:
    for columns in (1, 5):
        ours = things_apart(stored(len(rows), columns), module, CONFIG, DELTA)
        out = torch.empty(len(rows), columns)
        ours.read_into(out)
        assert out[:, 0].tolist() == rows
        assert ours.sources().tolist() == rows


def test_queries_keys_and_values_of_a_kv_head_lie_together() -> None:
    """InternLM 2: here two KV heads, of which each has two query heads of two numbers."""
    config = msgspec.structs.replace(TINY, num_heads=4, num_kv_heads=2, head_dim=2)
    found = dict(of_kv_heads(stored(16, 5), ("q", "k", "v"), config))
    rows = {"q": [0, 1, 2, 3, 8, 9, 10, 11], "k": [4, 5, 12, 13], "v": [6, 7, 14, 15]}
    for module, wanted in rows.items():
        out = torch.empty(len(wanted), 5)
        found[module].read_into(out)
        assert out[:, 0].tolist() == wanted
        assert out[:, 4].tolist() == wanted
    with pytest.raises(UnsupportedModel, match="16 rows are expected"):
        list(of_kv_heads(stored(15), ("q", "k", "v"), config))


def test_other_rows_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"2 heads of 2 \+ 2 rows are expected"):
        things_apart(stored(9), "self_attn.q_and_gate_proj", CONFIG, DELTA)
    with pytest.raises(UnsupportedModel, match="a layer without gated delta net"):
        things_apart(stored(8), "recurrent.in_proj_ba", CONFIG, LayerSpec())


def test_what_makes_drafts_is_left_out() -> None:
    assert from_hub("mtp.layers.0.self_attn.q_proj.weight") is None
    assert from_hub("mtp.fc.weight") is None
    assert with_head_from_hub("model.mtp.fc.weight") == "mtp.fc.weight"
    assert with_head_from_hub("model.layers.3.mlp.gate.weight") == "layers.3.mlp.gate.weight"
    assert with_head_from_hub("model.visual.patch_embed.proj.weight") is None
    assert from_hub("backbone.layers.3.mixer.D") == "layers.3.mixer.D"
    assert from_hub("model.language_model.layers.3.linear_attn.A_log") == (
        "layers.3.linear_attn.A_log"
    )
