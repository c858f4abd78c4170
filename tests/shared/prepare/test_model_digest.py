"""A prepared model's digest stays what it is while the model does: fields that later releases add
say nothing of it, and no default changes its meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig, TransformersConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.media_facts import MediaFacts
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import GenerationDefaults, WeightFiles
from penstock.model.quantised_checkpoint import QuantisedCheckpoint
from penstock.model.rope_spec import RopeSpec
from penstock.prepare.checkpoint import Checkpoint
from penstock.prepare.digest import model_digest, without_defaults

PLAIN = ModelConfig(
    architecture="llama",
    vocab_size=700,
    hidden_size=24,
    intermediate_size=48,
    num_layers=2,
    num_heads=3,
    num_kv_heads=1,
    head_dim=8,
    max_position=128,
    norm=NormSpec(eps=1e-5),
    ropes=(RopeSpec(theta=10_000.0, dims=8),),
    tie_word_embeddings=True,
)
DIGEST = "63124def8b289a98cbe53b7aa05f763173650321b20918453e30692fbd77c2cd"
DEFAULTS = Path(__file__).parent / "defaults.json"
"""The defaults of all that is digested, by `struct.field`."""
DIGESTED = (
    *(ModelConfig, TransformersConfig, HeadConfig, EncoderConfig),
    *(PoolingConfig, QuantisedCheckpoint, MediaFacts),
)


def digest(config: ModelConfig | EncoderConfig) -> str:
    checkpoint = Checkpoint(
        config=config,
        generation=GenerationDefaults(eos_token_ids=(2,)),
        weights=WeightFiles(format="safetensors", files=("a",), dtype="float32"),
        tokenizer_json=b"{}",
        chat_template="{{ messages }}",
        add_bos=False,
    )
    return model_digest(checkpoint, {"a": b"sample"})


def test_a_plain_decoders_stays() -> None:
    """Whoever changes it parts stored KV and receipts of all models from these."""
    assert digest(PLAIN) == DIGEST


class LaterLayer(LayerSpec, frozen=True, kw_only=True):
    of_later: float = 1.0


class Later(ModelConfig, frozen=True, kw_only=True, tag="decoder"):
    """As a later release may describe a decoder."""

    of_later: LayerSpec | None = None


def later(**said: Any) -> Later:
    fields = {each: getattr(PLAIN, each) for each in PLAIN.__struct_fields__}
    return Later(**(fields | said))


def test_a_field_that_says_nothing_changes_nothing() -> None:
    assert digest(later()) == digest(PLAIN)
    assert digest(later(layers=(LaterLayer(),))) == digest(PLAIN)
    of_encoder = EncoderConfig(layers=PLAIN)
    assert digest(replace(of_encoder, layers=later())) == digest(of_encoder)


def test_a_field_that_says_something_changes_it() -> None:
    changed: list[ModelConfig | EncoderConfig] = [
        PLAIN,
        later(of_later=LayerSpec()),
        later(layers=(LaterLayer(of_later=2.0),)),
        replace(PLAIN, learned_positions=1),
        replace(PLAIN, first_position=1),
        replace(PLAIN, final_norm=False),
        replace(PLAIN, layers=(LayerSpec(), LayerSpec())),
        replace(PLAIN, layers=(LayerSpec(attention=AttentionSpec(rope=None)),)),
        replace(PLAIN, layers=(LayerSpec(feed_forward=FeedForwardSpec(gated=False)),)),
        replace(PLAIN, ropes=()),
        EncoderConfig(layers=PLAIN),
        EncoderConfig(layers=PLAIN, causal=True),
    ]
    assert len({digest(each) for each in changed}) == len(changed)


def structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Structs that a value of this type may hold."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from structs(field.type)
    for each in get_args(kind):
        yield from structs(each)


def defaults() -> dict[str, str]:
    found = {}
    for kind in {each for digested in DIGESTED for each in structs(digested)}:
        for field in msgspec.structs.fields(kind):
            if not field.required:
                made = field.default_factory
                default = field.default if made is msgspec.NODEFAULT else made()
                found[f"{kind.__name__}.{field.name}"] = repr(without_defaults(default))
    return found


def test_no_default_changes() -> None:
    """What is left out of a digest means the same in each release. A new field's default is added
    to the file."""
    known, found = json.loads(DEFAULTS.read_text()), defaults()
    changed = {name for name, value in found.items() if known.get(name, value) != value}
    assert changed == set()
    assert found.keys() - known.keys() == set()
