"""Keywords that llguidance doesn't know, each in terms of those that it does."""

from __future__ import annotations

from penstock_worker.grammar_text.schemas.features.conditionals import Conditionals
from penstock_worker.grammar_text.schemas.features.contains import Contains
from penstock_worker.grammar_text.schemas.features.dependencies import Dependencies
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.features.negations import Negations
from penstock_worker.grammar_text.schemas.features.one_of import OneOf
from penstock_worker.grammar_text.schemas.features.property_names import PropertyNames
from penstock_worker.grammar_text.schemas.features.unevaluated import Unevaluated
from penstock_worker.grammar_text.schemas.features.unique_items import UniqueItems

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
