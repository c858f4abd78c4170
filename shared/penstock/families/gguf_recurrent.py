"""What the readers of GGUF metadata of families with recurrent layers have in common.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md), and llama.cpp's
converter, which gives a layer without keys and values 0 KV heads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.recurrent_reading import checked
from penstock.formats.fields import Fields
from penstock.model.recurrent_spec import Mamba2Spec, RecurrentSpec

KV_HEADS, INNER = "attention.head_count_kv", "feed_forward_length"
SIGMOID = 2
"""GGUF's number for a router's sigmoid."""


def per_layer(keys: Fields, key: str, count: int) -> list[int]:
    """A number that GGUF gives once, or once for each layer."""
    value = keys.values.get(key)
    if not isinstance(value, list):
        return [keys.integer(key)] * count
    keys.ignore(key)  # asked for here
    numbers = [Fields({key: each}, keys.where).integer(key) for each in value[:count]]
    if len(numbers) != count:
        raise UnsupportedModel(f"{keys.where}: {key} has {len(value)} numbers for {count} layers")
    return numbers


def of_one_size(model: GGUFMetadata, count: int) -> GGUFMetadata:
    """`model` with one number of KV heads and one inner dimension for all layers: those of the
    layers that have some. count: layers."""
    found = {}
    for key in (KV_HEADS, INNER):
        several = sorted(set(per_layer(model.keys, key, count)) - {0})
        if len(several) != 1:
            raise UnsupportedModel(
                f"{model.keys.where}: {key} is {', '.join(map(str, several)) or '0'}; one number "
                "for all layers that have any is served"
            )
        found[key] = several[0]
    return replace(model, keys=model.keys.replaced(found))


def mamba2(model: GGUFMetadata, **also: Any) -> RecurrentSpec:
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
