"""How many files of the product a family of models that see touches: those that name it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from penstock.families.served import AUDIO_FAMILIES
from penstock.families.vision.served import VISION_FAMILIES

ROOT = Path(__file__).parents[3]
PRODUCT = ("shared/penstock", "services/penstock_families", "services/penstock_worker", "kernels")
OWN = ("shared/penstock/families/vision/", "services/penstock_families/vision/")
MOST = 4
OF_DECODERS = re.compile(
    r"services/penstock_families/\w+\.py|shared/penstock/(families/\w+\.py|parsing/|prepare/gguf_)"
)
"""What names a decoder, which often has the family's name: how its chats are parsed, its tokens."""
NEW_MECHANISMS = re.compile(r"shared/penstock/(forms|media)/")
"""A form of pictures has a name of its own."""
OF_A_CLASS = r"(?:For|Image|Video|Model|Processor|$)"
"""What follows a family's name in transformers' classes of models and processors."""


def strings(tree: ast.Module) -> Iterator[str]:
    """Yields a module's strings but for those that stand by themselves, as docstrings do."""
    bodies = [getattr(node, "body", None) for node in ast.walk(tree)]
    alone = {
        id(each.value)
        for body in bodies
        if isinstance(body, list)
        for each in body
        if isinstance(each, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


@cache
def product() -> dict[str, frozenset[str]]:
    """The strings of each of the product's files, but for those about decoders."""
    paths = (path for top in PRODUCT for path in (ROOT / top).rglob("*.py"))
    named = {str(path.relative_to(ROOT)): path for path in paths}
    return {
        name: frozenset(strings(ast.parse(path.read_text())))
        for name, path in named.items()
        if not OF_DECODERS.match(name) and not NEW_MECHANISMS.match(name)
    }


def files_that_name(family: str) -> set[str]:
    """The files, without other families' own, which may take a class of its."""
    stems = {re.sub(r"(For\w+|Model)$", "", each) for each in VISION_FAMILIES[family].hub_classes}
    pattern = re.compile(rf"{family}|(?:{'|'.join(stems)}){OF_A_CLASS}\w*")
    return {
        name
        for name, texts in product().items()
        if any(map(pattern.fullmatch, sorted(texts)))
        and (family in texts or texts.isdisjoint(VISION_FAMILIES))
    }


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_family_that_sees_touches_few_files(family: str) -> None:
    """Its own, that of its mmproj files, and tables of transformers' defaults."""
    found = files_that_name(family)
    assert any(name.startswith(OWN) for name in found)
    assert len(found) <= MOST, found


def test_the_worker_names_no_family() -> None:
    families = {*VISION_FAMILIES, *AUDIO_FAMILIES}
    worker = {
        name: texts & families
        for name, texts in product().items()
        if re.match(r"services/penstock_worker/(vision|media|weights)/", name)
    }
    assert not any(worker.values()), {name: each for name, each in worker.items() if each}


def test_a_class_that_sees_and_hears_is_one_family() -> None:
    """WeightFiles.tower names it once."""
    sees = {name: each.name for each in VISION_FAMILIES.values() for name in each.hub_classes}
    hears = {name: each.name for each in AUDIO_FAMILIES.values() for name in each.hub_classes}
    assert {name: sees[name] for name in hears if name in sees} == {
        name: family for name, family in hears.items() if name in sees
    }
