"""How large a model may say that it is, in either format: checked before anything is made for each
of its layers or experts."""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.layer_spec import ExpertsSpec

MAX_LAYERS = 4096
MAX_EXPERTS = 4096
MAX_LAYER_INPUT = 65_536
MAX_STREAMS = 64
MAX_DRAFTS = 64
MAX_INNER = MAX_ROWS = 1 << 24
"""Most numbers inside a feed-forward, and most rows of a table by token ids."""


def layer_count(fields: Fields, key: str) -> int:
    """Raises UnsupportedModel for more layers than any model has, or none."""
    count = fields.integer(key)
    if not 1 <= count <= MAX_LAYERS:
        raise UnsupportedModel(
            f"{fields.where}: num_layers is {count}; 1 to {MAX_LAYERS} are allowed"
        )
    return count


def layers_without_drafts(keys: Fields) -> int:
    """Layers of a GGUF file's model without those that only make drafts."""
    blocks, drafts = (
        layer_count(keys, "block_count"),
        keys.integer("nextn_predict_layers", 0),
    )
    if not 0 <= drafts < blocks:
        raise UnsupportedModel(
            f"{keys.where}: nextn_predict_layers is {drafts}; 0 to {blocks - 1} are allowed"
        )
    return blocks - drafts


def check_drafts(fields: Fields) -> None:
    """Raises UnsupportedModel for a config.json that counts layers for drafts in a senseless way.
    How many there are is seen in the files."""
    key = "num_nextn_predict_layers"
    found = fields.values.get(key)
    if found is None:
        return
    if not 0 <= Fields({key: found}, fields.where).integer(key) <= MAX_DRAFTS:
        raise fields.wrong(key, f"0 to {MAX_DRAFTS} layers")


def expert_counts(fields: Fields, count_key: str, active_key: str) -> dict[str, Any]:
    """Fields of ExpertsSpec: how many there are, and how many a token has."""
    count, active = fields.integer(count_key), fields.integer(active_key)
    if not 1 <= active <= count <= MAX_EXPERTS:
        raise UnsupportedModel(
            f"{fields.where}: {active_key} is {active} and {count_key} is {count}; 1 to "
            f"{MAX_EXPERTS} experts are allowed, and no more of them for a token"
        )
    return {"count": count, "active": active}


def check_expert_groups(fields: Fields, experts: ExpertsSpec) -> None:
    """Raises UnsupportedModel if experts can't be chosen as said."""
    groups, active, size = experts.groups, experts.active_groups, experts.count
    if not (
        1 <= active <= groups
        and size % groups == 0
        and experts.active <= size // groups * active
        and (groups == 1 or size // groups >= experts.group_best)
    ):
        raise UnsupportedModel(
            f"{fields.where}: {experts.active} of {size} experts can't be chosen from {active} of "
            f"{groups} groups"
        )
