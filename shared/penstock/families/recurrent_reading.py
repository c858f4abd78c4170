"""What the readers of families with recurrent layers have in common: which layers are recurrent,
and how large states may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.recurrent_spec import (
    GatedDeltaSpec,
    Mamba2Spec,
    RecurrentSpec,
    ShortConvSpec,
    state_numbers,
)

FULL, LINEAR, CONV = "full_attention", "linear_attention", "conv"

NAMES = {
    FULL: FULL,
    LINEAR: LINEAR,
    CONV: CONV,
    "attention": FULL,
    "mamba": LINEAR,
    "moe": "moe",
    "mlp": "mlp",
}
"""Kinds of layers in config.json. Releases of transformers before 5 write some in another way."""

MAX_SIZE = 1 << 20
"""Most numbers of anything in a recurrent layer."""
MAX_KERNEL = 64
MAX_STATE = 1 << 28
"""Most numbers of a layer's state: a GiB."""

INFINITE = (float("inf"), {"__float__": "Infinity"})
"""JSON has no number for it: how files of transformers say it."""


def layer_kinds(
    fields: Fields, count: int, default: list[str], *allowed: str, key: str = "layer_types"
) -> list[str]:
    """The kind of each layer. default: where config.json doesn't say."""
    stated = fields.listed(key, str) if key in fields else default
    if len(stated) != count:
        raise UnsupportedModel(
            f"{fields.where}: {key} names {len(stated)} layers, num_hidden_layers is {count}"
        )
    for kind in stated:
        if NAMES.get(kind) not in allowed:
            raise UnsupportedModel(
                f"{fields.where}: {key} has {kind!r}; {', '.join(allowed)} are served"
            )
    return [NAMES[kind] for kind in stated]


def every_nth_full(fields: Fields, count: int) -> list[str]:
    """The kinds of layers, of which every `full_attention_interval`-th attends (Qwen)."""
    return every_nth(fields.integer("full_attention_interval", 4), count, fields.where)


def every_nth(nth: int, count: int, where: str) -> list[str]:
    """The kinds of layers, of which every nth attends."""
    if nth < 1:
        raise UnsupportedModel(f"{where}: full_attention_interval is {nth}; it must be positive")
    return [LINEAR if (number + 1) % nth else FULL for number in range(count)]


def checked(spec: RecurrentSpec, where: str) -> RecurrentSpec:
    """Returns the spec. Raises UnsupportedModel for sizes that can't be a model's."""
    sizes = {
        name: size
        for name in spec.__struct_fields__
        if type(size := getattr(spec, name)) is int  # a flag is none
    }
    for name, size in sizes.items():
        limit = MAX_KERNEL if name == "kernel" else MAX_SIZE
        # A convolution of one token alone keeps nothing: such a layer has no state.
        least = 2 if name == "kernel" and isinstance(spec, ShortConvSpec) else 1
        least = 0 if name == "rank" and isinstance(spec, GatedDeltaSpec) else least
        if not least <= size <= limit:
            raise UnsupportedModel(
                f"{where}: a recurrent layer's {name} is {size}; {least} to {limit} are allowed"
            )
    if isinstance(spec, GatedDeltaSpec) and spec.value_heads % spec.key_heads:
        raise UnsupportedModel(
            f"{where}: {spec.value_heads} value heads can't share {spec.key_heads} key heads: the "
            "first must be a multiple of the second"
        )
    if isinstance(spec, Mamba2Spec) and (
        spec.heads % spec.groups or spec.inner % spec.norm_groups or not _times_fit(spec)
    ):
        raise UnsupportedModel(
            f"{where}: Mamba has {spec.heads} heads in {spec.groups} groups, and steps in time "
            f"from {spec.time_step_min} to {spec.time_step_max}: heads must be a multiple of "
            "groups, and times ascend from 0 or more"
        )
    if state_numbers(spec) > MAX_STATE:
        raise UnsupportedModel(
            f"{where}: a recurrent layer's state has {state_numbers(spec)} numbers; at most "
            f"{MAX_STATE} are allowed"
        )
    return spec


def _times_fit(spec: Mamba2Spec) -> bool:
    highest = spec.time_step_max
    return spec.time_step_min >= 0 and (highest is None or spec.time_step_min < highest)


def gated_delta(fields: Fields) -> RecurrentSpec:
    """A gated delta net as Qwen's configs describe it."""
    spec = GatedDeltaSpec(
        key_heads=fields.integer("linear_num_key_heads", 16),
        value_heads=fields.integer("linear_num_value_heads", 32),
        key_dim=fields.integer("linear_key_head_dim", 128),
        value_dim=fields.integer("linear_value_head_dim", 128),
        kernel=fields.integer("linear_conv_kernel_dim", 4),
    )
    return checked(spec, fields.where)


def time_limits(fields: Fields) -> dict[str, Any]:
    """Fields of Mamba2Spec."""
    key = "time_step_limit"
    if key not in fields:
        return {}
    limits = fields.values[key]
    if not isinstance(limits, (list, tuple)) or len(limits) != 2:
        raise fields.wrong(key, "a list of two numbers")
    low, high = limits
    ends = Fields({"the lower": low, "the upper": high}, f"{fields.where}: {key}")
    return {
        "time_step_min": ends.number("the lower"),
        "time_step_max": None if high in INFINITE else ends.number("the upper"),
    }


# What the readers of GGUF metadata of families with recurrent layers have in common.
#
# Source of the keys: the GGUF specification in the ggml project (docs/gguf.md), and llama.cpp's
# converter, which gives a layer without keys and values 0 KV heads.

GGUF_KV_HEADS, GGUF_INNER = "attention.head_count_kv", "feed_forward_length"
GGUF_OF_MAMBA = tuple(
    f"ssm.{each}"
    for each in ("time_step_rank", "inner_size", "group_count", "state_size", "conv_kernel")
)
GGUF_SIGMOID = 2
"""GGUF's number for a router's sigmoid."""


def gguf_per_layer(keys: Fields, key: str, count: int) -> list[int]:
    """A number that GGUF gives once, or once for each layer."""
    value = keys.values.get(key)
    if not isinstance(value, list):
        return [keys.integer(key)] * count
    keys.ignore(key)  # asked for here
    numbers = [Fields({key: each}, keys.where).integer(key) for each in value[:count]]
    if len(numbers) != count:
        raise UnsupportedModel(f"{keys.where}: {key} has {len(value)} numbers for {count} layers")
    return numbers


def gguf_of_one_size(model: GGUFMetadata, count: int) -> GGUFMetadata:
    """`model` with one number of KV heads and one inner dimension for all layers: those of the
    layers that have some. count: layers."""
    found = {}
    for key in (GGUF_KV_HEADS, GGUF_INNER):
        several = sorted(set(gguf_per_layer(model.keys, key, count)) - {0})
        if len(several) != 1:
            raise UnsupportedModel(
                f"{model.keys.where}: {key} is {', '.join(map(str, several)) or '0'}; one number "
                "for all layers that have any is served"
            )
        found[key] = several[0]
    return replace(model, keys=model.keys.replaced(found))


def gguf_mamba2(model: GGUFMetadata, **also: Any) -> RecurrentSpec:
    """also: further fields of Mamba2Spec."""
    keys = model.keys
    heads, inner = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    if heads < 1 or inner % heads:
        raise UnsupportedModel(
            f"{keys.where}: {heads} Mamba heads don't make up the inner size {inner}"
        )
    spec = Mamba2Spec(
        heads=heads,
        head_dim=inner // heads,
        groups=keys.integer("ssm.group_count"),
        state=keys.integer("ssm.state_size"),
        kernel=keys.integer("ssm.conv_kernel"),
        **also,
    )
    return checked(spec, keys.where)
