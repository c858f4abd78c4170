"""What the families' readers of config.json have in common.

Source of the keys: the configuration classes of the transformers library. Releases before 5 write
`rope_theta` and `rope_scaling`; later ones write both into `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families.bounds import layer_count
from penstock.families.rope_scaling import read_scaling
from penstock.formats.fields import Fields
from penstock.model.layer_spec import LayerSpec
from penstock.model.rope_spec import RopeSpec
from penstock.process import logs

log = logs.get(__name__)

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
}
"""What config.json calls them."""

FULL, SLIDING = "full_attention", "sliding_attention"

MOST_SHOWN = 40
"""Settings that a line of the log lists."""

ROPE_HARMLESS = frozenset({"type", "rope_type", "max_position_embeddings", "finetuned", "factor"})
"""Keys of a section about rotary positions that change nothing beyond what others say."""


def refuse_unknown(fields: Fields, harmless: Container[str]) -> None:
    """Raises UnsupportedModel for a setting that no reader has asked for: it could change the
    output."""
    for key in fields.not_asked():
        if key not in harmless:
            shown = repr(fields.values[key])
            raise UnsupportedModel(
                f"{fields.where}: {key} is {shown[:80]}, which is not known here and could change "
                "the output"
            )


def pass_over(fields: Fields, harmless: Container[str], unserved: Container[str] = ()) -> None:
    """Passes over settings that no reader has asked for: the family's models don't read them, but
    for those in `unserved`, which change what is computed. Raises UnsupportedModel for these; the
    log lists the others but for what is harmless in every file."""
    inert = [key for key in fields.not_asked() if key not in harmless]
    for key in inert:
        if key in unserved:
            raise UnsupportedModel(
                f"{fields.where}: {key} is {repr(fields.values[key])[:80]}, which is not served"
            )
    if inert:
        shown = ", ".join(key[:80] for key in inert[:MOST_SHOWN])
        log.info("settings that this family doesn't read", config=fields.where, settings=shown)


def sizes(
    fields: Fields,
    *,
    default_head_dim: int | None = None,
    tied: bool = False,
    inner: int | None = None,
) -> dict[str, Any]:
    """Fields of ModelConfig: sizes, and whether embedding and head are tied. default_head_dim,
    tied: where config.json doesn't say; None: hidden size / heads. inner: the feed-forward's inner
    dimension, where it isn't one number."""
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", default_head_dim or -1)
    if head_dim == -1:
        if hidden < 1:
            raise UnsupportedModel(
                f"{fields.where}: hidden_size is {hidden}; 1 is the least allowed"
            )
        if heads < 1 or hidden % heads:
            raise UnsupportedModel(
                f"{fields.where}: {heads} attention heads don't divide the hidden size {hidden}"
            )
        head_dim = hidden // heads
    return {
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size") if inner is None else inner,
        "num_layers": layer_count(fields, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "max_position": fields.integer("max_position_embeddings"),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", tied),
    }


def activation(
    fields: Fields, *allowed: Activation, key: str = "hidden_act", default: str = "silu"
) -> Activation:
    """Raises UnsupportedModel for another one than the family has."""
    named = fields.text(key, default)
    found = ACTIVATIONS.get(named)
    if found is None or found not in allowed:
        served = [
            next(name for name, each in ACTIVATIONS.items() if each == one) for one in allowed
        ]
        raise UnsupportedModel(
            f"{fields.where}: {key} {named!r} is not served; {', '.join(served)} "
            f"{'is' if len(served) == 1 else 'are'}"
        )
    return found


def rope(
    fields: Fields,
    head_dim: int,
    *,
    kind: str | None = None,
    theta: float = 10_000.0,
    share: float | None = None,
    harmless: Iterable[str] = (),
) -> RopeSpec:
    """The rotation in the layers of one kind, or in all. theta: where config.json doesn't say.
    share: the part of a head that rotates, where config.json doesn't say; None: in this family the
    whole head does. harmless: keys of the section that change nothing in this family."""
    theta = fields.number("rope_theta", theta)
    settings = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    if kind is not None and kind in settings:
        settings = settings.section(kind)
    theta = settings.number("rope_theta", theta)
    dims = _rotating(fields, settings, head_dim, share)
    found = RopeSpec(
        theta=theta,
        dims=dims,
        scaling=read_scaling(settings, fields, dims),
        query_growth=settings.number("llama_4_scaling_beta", 0.0),
        query_growth_length=settings.integer("original_max_position_embeddings", 8192),
    )
    if found.query_growth_length < 1:
        raise UnsupportedModel(f"{settings.where}: the original length must be positive")
    settings.ignore(*harmless)
    refuse_unknown(settings, ROPE_HARMLESS)
    return found


def _rotating(fields: Fields, settings: Fields, head_dim: int, default: float | None) -> int:
    if head_dim % 2:
        raise UnsupportedModel(
            f"{fields.where}: head_dim is {head_dim}; rotary embedding needs an even one"
        )
    key = "partial_rotary_factor"
    share = settings.number(key, fields.number(key, 1.0 if default is None else default))
    if default is None and share != 1.0:
        raise UnsupportedModel(
            f"{fields.where}: {key} {share:g} is not served in this family; 1 is"
        )
    dims = int(head_dim * share)
    if not 0 < dims <= head_dim or dims % 2:
        raise UnsupportedModel(
            f"{fields.where}: {key} {share:g} makes {dims} numbers of a head rotate; 2 to "
            f"{head_dim} are allowed, and an even number"
        )
    return dims


def local_rope(fields: Fields, head_dim: int, theta: float) -> RopeSpec:
    """The rotation in the layers with a window, where those that see everything have another one.
    Releases before 5 of transformers stretch only the latter's."""
    section = fields.section("rope_parameters")
    if SLIDING in section:
        return rope(fields, head_dim, kind=SLIDING, theta=theta)
    return RopeSpec(theta=theta, dims=head_dim)


def every_nth_full(nth: int, count: int) -> list[str]:
    """The kinds of layers, of which every nth sees everything."""
    return [FULL if nth and (number + 1) % nth == 0 else SLIDING for number in range(count)]


def no_windows(fields: Fields, count: int) -> None:
    """Raises UnsupportedModel if config.json has sliding windows, for a family without."""
    if SLIDING in layer_kinds(fields, count, [FULL] * count):
        raise UnsupportedModel(f"{fields.where}: layer_types has {SLIDING!r}; {FULL} is served")


def only(fields: Fields, **served: object) -> None:
    """Raises UnsupportedModel for a setting with another value than the only one that is served."""
    for key, value in served.items():
        if key in fields and fields.values[key] != value:
            raise fields.wrong(key, repr(value))


def layer_kinds(fields: Fields, count: int, default: list[str]) -> list[str]:
    """FULL or SLIDING for each layer. default: where config.json doesn't say."""
    kinds = fields.listed("layer_types", str) if "layer_types" in fields else default
    if len(kinds) != count:
        raise UnsupportedModel(
            f"{fields.where}: layer_types names {len(kinds)} layers, num_hidden_layers is {count}"
        )
    unknown = sorted(set(kinds) - {FULL, SLIDING})
    if unknown:
        raise UnsupportedModel(
            f"{fields.where}: layer_types has {unknown[0]!r}; {FULL} and {SLIDING} are served"
        )
    return kinds


def window(fields: Fields, key: str = "sliding_window") -> int:
    """Tokens that a sliding layer sees."""
    tokens = fields.integer(key)
    if tokens < 1:
        raise UnsupportedModel(f"{fields.where}: {key} is {tokens}; it must be positive")
    return tokens


def windows_behind(fields: Fields, count: int) -> list[int | None]:
    """Each layer's window, where `use_sliding_window` turns it on after the first
    `max_window_layers` (Qwen)."""
    fields.ignore("sliding_window", "max_window_layers")  # stated even where they are off
    if not fields.flag("use_sliding_window", False):
        kinds = layer_kinds(fields, count, [FULL] * count)
    else:
        first = fields.integer("max_window_layers", 28)
        windowed = [SLIDING if number >= first else FULL for number in range(count)]
        kinds = layer_kinds(fields, count, windowed)
    return [window(fields) if kind == SLIDING else None for kind in kinds]


def shared(layers: Iterable[LayerSpec]) -> tuple[LayerSpec, ...]:
    """Returns one layer that stands for all if they are equal; else all of them."""
    found = tuple(layers)
    return found[:1] if len(set(found)) == 1 else found


def expert_counts(fields: Fields, count_key: str, newer_key: str = "") -> dict[str, Any]:
    """Fields of ExpertsSpec: how many there are, and how many a token has. newer_key: what later
    releases of transformers write instead."""
    count_key = newer_key if newer_key in fields else count_key
    return bounds.expert_counts(fields, count_key, "num_experts_per_tok")


def sparse_layers(fields: Fields, count: int) -> list[bool]:
    """Whether each layer has experts: every `decoder_sparse_step`-th, but those in
    `mlp_only_layers` (Qwen)."""
    every, key = fields.integer("decoder_sparse_step", 1), "mlp_only_layers"
    dense = fields.listed(key, int) if key in fields else []
    return [
        number not in dense and every > 0 and (number + 1) % every == 0 for number in range(count)
    ]


def sparse_behind(fields: Fields, count: int, key: str = "mlp_layer_types") -> list[bool]:
    """Whether each layer has experts: as a list of "dense" and "sparse" says, or all but the first
    `first_k_dense_replace`."""
    first = fields.integer("first_k_dense_replace", 1)
    if key not in fields:
        return [number >= first for number in range(count)]
    kinds = fields.listed(key, str)
    if len(kinds) != count or set(kinds) - {"dense", "sparse"}:
        raise fields.wrong(key, f"a list of {count} times 'dense' or 'sparse'")
    return [kind == "sparse" for kind in kinds]


def flags(fields: Fields, key: str, count: int) -> list[bool]:
    """A list of 0 or 1 for each layer. Raises UnsupportedModel."""
    found = fields.listed(key, int)
    if len(found) != count or set(found) - {0, 1}:
        raise fields.wrong(key, f"a list of {count} times 0 or 1")
    return [each == 1 for each in found]
