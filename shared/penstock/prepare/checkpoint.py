"""What a checkpoint says about itself, in whichever format it came."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from penstock.errors import PenstockError, UnsupportedModel
from penstock.families.bounds import MAX_LAYERS
from penstock.formats.fields import Fields
from penstock.model.attention_spec import KVHeadsSpec
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock.model.media_facts import MediaFacts
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import GenerationDefaults, WeightFiles
from penstock.model.rope_spec import RopeSpec

Config = TypeVar("Config", bound=ModelConfig)

MAX_SIZE = 1 << 24
MAX_HEADS = 65_536
MAX_POSITION = 1 << 30


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The normalised contents of a GGUF file or a hub folder. chat_template: "" for none."""

    config: ModelConfig | EncoderConfig
    generation: GenerationDefaults
    weights: WeightFiles
    tokenizer_json: bytes
    chat_template: str
    add_bos: bool
    pooling: PoolingConfig | None = None
    media: MediaFacts | None = None


NO_TOKENIZER = b"{}"
"""tokenizer.json of a head, whose tokens are those of the model that it drafts for."""


def head_checkpoint(config: HeadConfig, weights: WeightFiles) -> Checkpoint:
    """Returns what the files of a head hold. Tokenizer, template and defaults of generation are
    those of the model that it drafts for."""
    return Checkpoint(
        config=config,
        generation=GenerationDefaults(),
        weights=weights,
        tokenizer_json=NO_TOKENIZER,
        chat_template="",
        add_bos=False,
    )


def check_config(config: ModelConfig, where: str) -> None:
    """Refuse shapes that can't be a model. Raises UnsupportedModel."""
    bounds = {
        "vocab_size": MAX_SIZE,
        "hidden_size": MAX_SIZE,
        "intermediate_size": MAX_SIZE,
        "num_layers": MAX_LAYERS,
        "num_heads": MAX_HEADS,
        "num_kv_heads": MAX_HEADS,
        "head_dim": MAX_HEADS,
        "max_position": MAX_POSITION,
    }
    for field, limit in bounds.items():
        value = getattr(config, field)
        if not 1 <= value <= limit:
            raise UnsupportedModel(f"{where}: {field} is {value}; 1 to {limit} are allowed")
    usual = KVHeadsSpec(count=config.num_kv_heads, size=config.head_dim)
    for layer in dict.fromkeys(config.layers):
        heads = layer.attention.query_heads or config.num_heads
        own = layer.attention.kv_heads or usual
        _check_heads(heads, own, where, rotate=layer.attention.rope is not None)
        _check_layer(layer, where)
    check_positive(_numbers(config), where)
    for rope in config.ropes:
        _check_scaling(rope, where)
    if len(config.layers) not in (1, config.num_layers):
        raise UnsupportedModel(
            f"{where}: {len(config.layers)} layers are described, and there are {config.num_layers}"
        )


def stretched(config: Config) -> Config:
    """Returns the config with its context length multiplied by yarn's factor: model cards ask users
    to add yarn while max_position_embeddings may still be the trained length, as in vLLM. For a
    config that `check_config` accepted."""
    reached = [
        int(rope.scaling.factor * rope.scaling.original_max_position)
        for rope in config.ropes
        if rope.scaling is not None and rope.scaling.kind == "yarn"
    ]
    most = min(max([config.max_position, *reached]), MAX_POSITION)
    if most == config.max_position:
        return config
    return msgspec.structs.replace(config, max_position=most)


def check_positive(numbers: Iterable[tuple[str, float | None]], where: str) -> None:
    """Raises UnsupportedModel for a number that is neither None nor positive and finite."""
    for field, number in numbers:
        if number is None:
            continue
        if isinstance(number, complex) or not math.isfinite(number) or number <= 0:
            raise UnsupportedModel(
                f"{where}: {field} is {number}; it must be a positive finite number"
            )


def check_towers(config: ModelConfig | EncoderConfig, where: str) -> None:
    """Refuses towers whose numbers would give no rows. Raises UnsupportedModel."""
    for part in (config.vision, config.audio if isinstance(config, ModelConfig) else None):
        check_positive(_of_tower(part), where)


_TOWER_NUMBERS = {
    "eps": "the eps of a norm of the tower (layer_norm_eps, rms_norm_eps)",
    "cumulative_eps": "the eps of a cumulative norm of the tower",
    "theta": "the tower's rope_theta",
    "score_scale": "the tower's scale of attention",
    "score_cap": "the tower's soft cap of attention",
    "bound": "the tower's bound of activations",
    "row_multiplier": "the multiplier of the tower's rows",
}
"""Fields of a tower's parts and its projector's, as an error calls them."""


def _of_tower(part: object) -> Iterator[tuple[str, float | None]]:
    if isinstance(part, tuple):
        for each in part:
            yield from _of_tower(each)
    if not isinstance(part, msgspec.Struct):
        return
    for field in part.__struct_fields__:
        value = getattr(part, field)
        if field in _TOWER_NUMBERS:
            yield _TOWER_NUMBERS[field], value
        else:
            yield from _of_tower(value)


def _numbers(config: ModelConfig) -> Iterator[tuple[str, float | None]]:
    key = "layer_norm_eps" if config.norm.kind == "layer" else "rms_norm_eps"
    yield f"the norms' eps ({key})", config.norm.eps
    for rope in config.ropes:
        yield "rope_theta", rope.theta
        yield "the factor of rope_scaling", None if rope.scaling is None else rope.scaling.factor
    yield "the multiplier of embeddings", config.embedding_multiplier
    yield "the multiplier of logits", config.logits_multiplier
    yield "the soft cap of logits", config.logits_soft_cap
    for layer in dict.fromkeys(config.layers):
        yield "the scale of attention", layer.attention.scale
        yield "the soft cap of attention", layer.attention.soft_cap
        yield "the residual's multiplier", layer.residual_multiplier
        yield "a feed-forward's limit", layer.feed_forward.limit
        if layer.feed_forward.experts is not None:
            yield "the experts' limit", layer.feed_forward.experts.limit


def _check_layer(layer: LayerSpec, where: str) -> None:
    feed_forward, experts = layer.feed_forward, layer.feed_forward.experts
    sizes = {
        "a feed-forward's inner dimension": (feed_forward.inner, MAX_SIZE),
        "a sliding window": (layer.attention.window, MAX_POSITION),
        "a chunk of attention": (layer.attention.chunk, MAX_POSITION),
        "the experts' inner dimension": (None if experts is None else experts.inner, MAX_SIZE),
    }
    for name, (size, most) in sizes.items():
        if size is not None and not 1 <= size <= most:
            raise UnsupportedModel(f"{where}: {name} is {size}; 1 to {most} are allowed")
    optional = (
        {}
        if experts is None
        else {
            "the shared expert's inner dimension": experts.shared_inner,
            "the experts' latent dimension": experts.latent,
        }
    )
    for name, size in optional.items():
        if not 0 <= size <= MAX_SIZE:
            raise UnsupportedModel(f"{where}: {name} is {size}; 0 to {MAX_SIZE} are allowed")
    if not 0 <= feed_forward.sparsity < 1:
        raise UnsupportedModel(
            f"{where}: a share of {feed_forward.sparsity} of the gate is to be zero; it must be "
            "below 1"
        )


def _check_heads(heads: int, own: KVHeadsSpec, where: str, *, rotate: bool) -> None:
    if not 1 <= heads <= MAX_HEADS:
        raise UnsupportedModel(
            f"{where}: a layer has {heads} attention heads; 1 to {MAX_HEADS} are allowed"
        )
    if not 1 <= own.count <= MAX_HEADS or heads % own.count:
        raise UnsupportedModel(
            f"{where}: {heads} attention heads can't be shared out among {own.count} key/value "
            "heads: the first must be a multiple of the second"
        )
    if not 1 <= own.size <= MAX_HEADS:
        raise UnsupportedModel(f"{where}: head_dim is {own.size}; 1 to {MAX_HEADS} are allowed")
    if rotate and own.size % 2:
        raise UnsupportedModel(
            f"{where}: head_dim is {own.size}; rotary embedding needs an even one"
        )


def _check_scaling(rope: RopeSpec, where: str) -> None:
    scaling = rope.scaling
    if scaling is None:
        return
    original = scaling.original_max_position
    if not 0 <= original <= MAX_POSITION:
        raise UnsupportedModel(
            f"{where}: the original length of stretched positions is {repr(original)[:80]}; up to "
            f"{MAX_POSITION} is allowed"
        )
    if scaling.kind != "yarn":
        return
    if scaling.factor * original > MAX_POSITION:
        raise UnsupportedModel(
            f"{where}: yarn stretches {original} positions by {scaling.factor:g}; up to "
            f"{MAX_POSITION} in all are allowed"
        )
    if not 0 < scaling.beta_slow <= scaling.beta_fast or rope.theta <= 1:
        raise UnsupportedModel(
            f"{where}: yarn's beta_slow is {scaling.beta_slow:g}, beta_fast {scaling.beta_fast:g}, "
            f"rope_theta {rope.theta:g}; the first two must be positive and ascending, the third "
            "above 1"
        )


def check_token_ids(
    generation: GenerationDefaults,
    config: ModelConfig | EncoderConfig,
    highest_token: int,
    where: str,
) -> None:
    """Refuse a tokenizer that can make ids which the model has no embedding for."""
    if highest_token >= config.vocab_size:
        raise UnsupportedModel(
            f"{where}: the tokenizer's highest id is {highest_token}, but the model has only "
            f"{config.vocab_size} embeddings"
        )
    bos = generation.bos_token_id
    for token in (*generation.eos_token_ids, *(() if bos is None else (bos,))):
        if not 0 <= token < config.vocab_size:
            raise UnsupportedModel(
                f"{where}: the BOS or EOS id {token} is outside the vocabulary of "
                f"{config.vocab_size} tokens"
            )


MAX_SUPPRESSED = 1024
"""Most ids that no output holds."""


def suppressed(fields: Fields, key: str, config: ModelConfig | EncoderConfig) -> tuple[int, ...]:
    """Ids that outputs never hold, ascending; as in transformers, one outside the vocabulary means
    nothing. Whisper's rules of transcripts have theirs. Raises UnsupportedModel for too many."""
    if fields.values.get(key) is None or config.encoder_rows:
        return ()
    found = fields.listed(key, int)
    if len(found) > MAX_SUPPRESSED:
        raise UnsupportedModel(
            f"{fields.where}: {key} has {len(found)} ids; {MAX_SUPPRESSED} at most are allowed"
        )
    never = tuple(sorted({token for token in found if 0 <= token < config.vocab_size}))
    if len(never) == config.vocab_size:
        raise UnsupportedModel(
            f"{fields.where}: {key} has all {config.vocab_size} ids of the vocabulary; at "
            "least one must be left to write"
        )
    return never


@contextmanager
def odd_values_refused(where: str) -> Iterator[None]:
    """Raises UnsupportedModel for what a reader of `where` couldn't compute: a power beyond a
    float, a division by zero, a nesting beyond Python's stack."""
    try:
        yield
    except PenstockError:
        raise
    except (ArithmeticError, RecursionError, ValueError) as error:
        raise UnsupportedModel(
            f"{where}: nothing can be computed from the value of a setting ({error})"
        ) from error
