"""A family is served by being defined in a module of a package of families."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import penstock.families
import penstock_families
from penstock.families.family import EncoderFamily, Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.served import ENCODERS, FAMILIES, HUB_CLASSES
from penstock.families.source import GGUFSource
from penstock.formats.fields import Fields

DEFINED = {
    id(each): each
    for package in (penstock.families, penstock_families)
    for folder in package.__path__
    for path in Path(folder).glob("[!_]*.py")
    for each in vars(import_module(f"{package.__name__}.{path.stem}")).values()
    if isinstance(each, Family | EncoderFamily)
}.values()


def test_all_that_have_a_class_are_served() -> None:
    decoders = [each for each in DEFINED if isinstance(each, Family) and each.hub_classes]
    assert len(decoders) > 100
    assert all(FAMILIES[each.name] is each for each in decoders)
    assert len(FAMILIES) == len(decoders)
    encoders = [each for each in DEFINED if isinstance(each, EncoderFamily)]
    assert all(ENCODERS[each.name] is each for each in encoders)
    assert len(ENCODERS) == len(encoders)


def test_no_class_has_two_families() -> None:
    counts = Counter(name for each in FAMILIES.values() for name in each.hub_classes)
    assert {name for name, count in counts.items() if count > 1} == set()
    assert HUB_CLASSES.keys() == counts.keys()


def test_what_a_gguf_file_cannot_say_must_be_said_by_the_reader() -> None:
    source = GGUFSource(GGUFMetadata(Fields({"block_count": 3}, "file"), {}, 8))
    assert source.integer("num_hidden_layers", gguf="block_count") == 3
    assert source.number("swiglu_limit", 7.0) == 7.0
    assert source.flag("norm_topk_prob", False, without=True) is True
    with pytest.raises(TypeError, match="rotary_dim"):
        source.integer("rotary_dim")
