"""Which tensors of a checkpoint are its own head's."""

from __future__ import annotations

import pytest

from penstock.families.family import (
    BESIDE_THE_LAYERS,
    LAYER_BEHIND_THE_LAST,
    LAYERS_OF_THEIR_OWN,
    OwnHead,
)
from penstock.families.served import FAMILIES


@pytest.mark.parametrize(
    ("head", "name", "ours"),
    [
        (LAYER_BEHIND_THE_LAST, "layers.61.shared_head.norm.weight", "norm.weight"),
        (LAYER_BEHIND_THE_LAST, "layers.61.mlp.gate.weight", "layers.0.mlp.gate.weight"),
        (LAYER_BEHIND_THE_LAST, "layers.6.mlp.gate.weight", None),
        (LAYER_BEHIND_THE_LAST, "layers.62.eh_proj.weight", None),
        (LAYER_BEHIND_THE_LAST, "norm.weight", None),
        (BESIDE_THE_LAYERS, "mtp.pre_fc_norm_hidden.weight", "hnorm.weight"),
        (BESIDE_THE_LAYERS, "mtp.norm.weight", "norm.weight"),
        (BESIDE_THE_LAYERS, "norm.weight", None),
        (BESIDE_THE_LAYERS, "mtp.layers.0.mlp.norm.weight", "layers.0.mlp.norm.weight"),
        (
            BESIDE_THE_LAYERS,
            "mtp.layers.0.mlp.experts.gate_up_proj",
            "layers.0.mlp.experts.gate_up_proj",
        ),
        (BESIDE_THE_LAYERS, "mtp.layers.1.mlp.gate.weight", None),
        (BESIDE_THE_LAYERS, "mtp.unknown", "unknown"),
    ],
)
def test_tensors_of_a_head_by_our_names(head: OwnHead, name: str, ours: str | None) -> None:
    assert head.our_name(name, layers=61) == ours


@pytest.mark.parametrize(
    ("head", "name", "ours"),
    [
        (LAYER_BEHIND_THE_LAST, "layers.62.eh_proj.weight", "eh_proj.weight"),
        (LAYER_BEHIND_THE_LAST, "layers.61.eh_proj.weight", None),
        (BESIDE_THE_LAYERS, "mtp.fc.weight", "eh_proj.weight"),
        (BESIDE_THE_LAYERS, "mtp.layers.1.mlp.norm.weight", "layers.0.mlp.norm.weight"),
        (BESIDE_THE_LAYERS, "mtp.layers.0.mlp.norm.weight", None),
        (LAYERS_OF_THEIR_OWN, "mtp_layers.1.input_proj.weight", "eh_proj.weight"),
        (LAYERS_OF_THEIR_OWN, "mtp_layers.1.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        (LAYERS_OF_THEIR_OWN, "mtp_layers.0.input_proj.weight", None),
        (LAYERS_OF_THEIR_OWN, "layers.1.mlp.up_proj.weight", None),
    ],
)
def test_tensors_of_its_second_layer(head: OwnHead, name: str, ours: str | None) -> None:
    assert head.our_name(name, layers=61, draft=1) == ours


def test_what_joins_is_named_as_in_the_file() -> None:
    assert FAMILIES["deepseek_v3"].own_head.join(61) == "layers.61.eh_proj"
    for name in ("qwen3_next", "qwen3_5", "qwen3_5_moe"):
        assert FAMILIES[name].own_head.join(48) == "mtp.fc"
