"""Entities of a text, of its tokens' classes, as transformers' pipeline for token classification
finds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

NO_ENTITY = "O"
"""The label of tokens that belong to none."""


class ClassifiedToken(msgspec.Struct, frozen=True):
    """label: the likeliest.  start, end: its place in the text, characters."""

    index: int
    label: str
    score: float
    start: int
    end: int


class Entity(msgspec.Struct, frozen=True):
    """label: without B- or I-.  score: the mean of its tokens'.  start, end: characters."""

    label: str
    score: float
    start: int
    end: int


def classified_tokens(
    probs: list[list[float]], spans: list[tuple[int, int] | None], labels: tuple[str, ...]
) -> list[ClassifiedToken]:
    """The tokens of a text. spans: of each; None for special tokens, which are left out."""
    found = []
    for index, (own, span) in enumerate(zip(probs, spans, strict=True)):
        if span is not None:
            best = max(range(len(own)), key=own.__getitem__)
            found.append(ClassifiedToken(index, labels[best], own[best], *span))
    return found


def entities_of(tokens: Iterable[ClassifiedToken]) -> list[Entity]:
    """Neighbours of one label are an entity, which B- begins anew."""
    return [
        Entity(
            _tag(group[0].label)[1],
            sum(token.score for token in group) / len(group),
            group[0].start,
            group[-1].end,
        )
        for group in _groups(tokens)
        if _tag(group[0].label)[1] != NO_ENTITY
    ]


def _groups(tokens: Iterable[ClassifiedToken]) -> Iterator[list[ClassifiedToken]]:
    group: list[ClassifiedToken] = []
    for token in tokens:
        begins, label = _tag(token.label)
        if group and (begins or label != _tag(group[-1].label)[1]):
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def _tag(label: str) -> tuple[bool, str]:
    """Whether an entity begins anew, and which kind it is."""
    if label[:2] in ("B-", "I-"):
        return label[0] == "B", label[2:]
    return False, label
