"""Interface of features: keywords that llguidance doesn't know, and their translation for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock_grammars.schemas.disjointness import Disjointness
from penstock_grammars.schemas.keywords import TYPES, Schema
from penstock_grammars.schemas.negation import Negation
from penstock_grammars.schemas.values import kinds_of


@dataclass(frozen=True, slots=True)
class Context:
    """What a feature may ask."""

    definitions: Mapping[str, Any]
    """Definitions by reference; each has been rewritten, or is when it is asked for."""
    negation: Negation
    disjointness: Disjointness
    of_features: Container[str]
    """Keywords that features answer for, which llguidance doesn't know."""
    leave_one_of: bool = False
    """Whether a `oneOf` whose branches may overlap is left to llguidance, which knows what is said
    around it."""

    def plain(self, node: dict[str, Any]) -> dict[str, Any]:
        """What the node says in keywords that llguidance knows."""
        return {name: value for name, value in node.items() if name not in self.of_features}

    def kinds(self, node: Any) -> frozenset[str]:
        """The types that its documents may have."""
        return kinds_of(node, self.definitions)

    def resolved(self, schema: Any) -> Any:
        """What a schema that only refers to another refers to."""
        for _ in range(8):
            if not isinstance(schema, dict) or schema.keys() != {"$ref"}:
                break
            if schema["$ref"] not in self.definitions:
                break
            schema = self.definitions[schema["$ref"]]
        return schema

    def or_of_other_type(self, kind: str, node: Any, options: list[Schema]) -> list[Schema]:
        """The options, and documents that aren't of that type, where the node may have any."""
        others = [each for each in TYPES if each in self.kinds(node) and each != kind]
        return [*options, {"type": others}] if others else options


class Feature(ABC):
    """A feature: how some keywords are said to llguidance."""

    keywords: ClassVar[tuple[str, ...]]

    @abstractmethod
    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        """Schemas that hold together exactly where the node's keywords do, given the node's others.

        node: one with at least one of the keywords; all schemas inside of it have been rewritten.
        Raises Unservable.
        """
