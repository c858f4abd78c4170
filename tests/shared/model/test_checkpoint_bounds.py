"""Numbers of a configuration with which nothing could be computed are refused when it is read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import UnsupportedModel
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock.model.rope_spec import RopeSpec
from penstock.prepare.checkpoint import check_config
from tests.worker.checkpoints import TINY

INFINITE = float("inf")


def of_layer(**fields: Any) -> ModelConfig:
    return msgspec.structs.replace(TINY, layers=(LayerSpec(**fields),))


@pytest.mark.parametrize(
    ("config", "said"),
    [
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
