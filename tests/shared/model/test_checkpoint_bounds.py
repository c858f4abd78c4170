"""Numbers of a configuration with which nothing could be computed are refused when it is read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import UnsupportedModel
from penstock.families.bert_reading import bert_encoder
from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.rope_spec import RopeScaling, RopeSpec
from penstock.prepare.checkpoint import check_config
from penstock.prepare.hub_encoder_config import check_encoder_config
from tests.worker.checkpoints import TINY

INFINITE = float("inf")


def of_layer(**fields: Any) -> ModelConfig:
    return msgspec.structs.replace(TINY, layers=(LayerSpec(**fields),))


def stretched(factor: float, original: int) -> ModelConfig:
    scaling = RopeScaling(kind="yarn", factor=factor, original_max_position=original)
    return msgspec.structs.replace(TINY, ropes=(RopeSpec(dims=2, scaling=scaling),))


def odd_heads(rope: int | None) -> ModelConfig:
    heads = KVHeadsSpec(count=1, size=1 << 20 if rope is None else 7)
    return of_layer(attention=AttentionSpec(rope=rope, kv_heads=heads))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (stretched(1e308, 4096), r"yarn stretches 4096 positions by 1e\+308; up to 1073741824"),
        (stretched(1.5e308, 2**30), r"yarn stretches 1073741824 positions by 1.5e\+308"),
        (stretched(4.0, int(1e308)), "the original length of stretched positions is 10000"),
        (stretched(4.0, 10**400), "the original length of stretched positions is 10000"),
        (odd_heads(None), "head_dim is 1048576; 1 to 65536 are allowed$"),
        (odd_heads(0), "head_dim is 7; rotary embedding needs an even one$"),
        (
            msgspec.structs.replace(TINY, norm=NormSpec(kind="layer", eps=-1.0, bias=True)),
            r"the norms' eps \(layer_norm_eps\) is -1.0",
        ),
        (msgspec.structs.replace(TINY, logits_soft_cap=0.0), "soft cap of logits is 0.0"),
        (msgspec.structs.replace(TINY, logits_multiplier=INFINITE), "multiplier of logits is inf"),
        (msgspec.structs.replace(TINY, embedding_multiplier=0.0), "multiplier of embeddings is 0"),
        (msgspec.structs.replace(TINY, ropes=(RopeSpec(dims=2, theta=INFINITE),)), "theta is inf"),
        (of_layer(residual_multiplier=INFINITE), "residual's multiplier is inf"),
        (of_layer(attention=AttentionSpec(soft_cap=0.0)), "soft cap of attention is 0.0"),
        (of_layer(attention=AttentionSpec(window=2**32 + 5)), "a sliding window is 4294967301"),
        (of_layer(attention=AttentionSpec(chunk=0)), "a chunk of attention is 0"),
        (of_layer(feed_forward=FeedForwardSpec(sparsity=1.0)), "must be below 1"),
        (
            of_layer(
                feed_forward=FeedForwardSpec(experts=ExpertsSpec(count=2, active=1, inner=10**9))
            ),
            "the experts' inner dimension is 1000000000",
        ),
    ],
)
def test_they_are_named(config: ModelConfig, said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        check_config(config, "config.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": -1}, "hidden_size is -1; 1 to 16777216 are allowed"),
        ({"num_heads": 0}, "num_heads is 0; 1 to 65536 are allowed"),
        ({"hidden_size": 50}, "12 attention heads don't divide the hidden size 50"),
        ({"hidden_size": 5}, "12 attention heads don't divide the hidden size 5"),
        ({"max_position": 2**24 + 1}, "max_position is 16777217; 1 to 16777216 are allowed"),
        ({"learned_positions": -1}, "learned_positions is -1; 0 to 16777216 are allowed"),
        ({"layer_norm_eps": 0.0}, r"the norms' eps \(layer_norm_eps\) is 0.0"),
    ],
)
def test_an_encoders_are_named(changes: dict[str, Any], said: str) -> None:
    sizes: dict[str, Any] = {"vocab_size": 60, "intermediate_size": 80, "max_position": 80}
    sizes |= {"hidden_size": 48, "num_layers": 2, "num_heads": 12}
    check_encoder_config(bert_encoder("bert", **sizes), "config.json")
    with pytest.raises(UnsupportedModel, match=said):
        check_encoder_config(bert_encoder("bert", **(sizes | changes)), "config.json")
