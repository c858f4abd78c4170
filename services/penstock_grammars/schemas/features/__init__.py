"""Keywords that llguidance doesn't know, each in terms of those that it does."""

from __future__ import annotations

from penstock_grammars.schemas.features.arrays import Contains, UniqueItems
from penstock_grammars.schemas.features.branches import Conditionals, Negations, OneOf
from penstock_grammars.schemas.features.interface import Context, Feature
from penstock_grammars.schemas.features.objects import (
    Dependencies,
    PropertyNames,
    Unevaluated,
)

FEATURES: dict[str, Feature] = {
    keyword: feature
    for feature in (
        Negations(),
        OneOf(),
        Conditionals(),
        Dependencies(),
        PropertyNames(),
        Contains(),
        UniqueItems(),
        Unevaluated(),
    )
    for keyword in feature.keywords
}
"""The features, by keyword."""

__all__ = ["FEATURES", "Context", "Feature"]
