"""Keywords that llguidance doesn't know, each in terms of those that it does."""

from __future__ import annotations

from penstock_worker.grammar_text.schemas.features.arrays import Contains, UniqueItems
from penstock_worker.grammar_text.schemas.features.branches import Conditionals, Negations, OneOf
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.features.objects import (
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
