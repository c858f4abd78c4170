"""How large a model may say that it is, in either format: checked before anything is made for each
of its layers or experts."""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields

MAX_LAYERS = 4096
MAX_EXPERTS = 4096


def layer_count(fields: Fields, key: str) -> int:
    """Raises UnsupportedModel for more layers than any model has, or none."""
    count = fields.integer(key)
    if not 1 <= count <= MAX_LAYERS:
        raise UnsupportedModel(
            f"{fields.where}: num_layers is {count}; 1 to {MAX_LAYERS} are allowed"
        )
    return count


def expert_counts(fields: Fields, count_key: str, active_key: str) -> dict[str, Any]:
    """Fields of ExpertsSpec: how many there are, and how many a token has."""
    count, active = fields.integer(count_key), fields.integer(active_key)
    if not 1 <= active <= count <= MAX_EXPERTS:
        raise UnsupportedModel(
            f"{fields.where}: {active_key} is {active} and {count_key} is {count}; 1 to "
            f"{MAX_EXPERTS} experts are allowed, and no more of them for a token"
        )
    return {"count": count, "active": active}
