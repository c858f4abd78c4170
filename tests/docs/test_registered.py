"""No class of transformers or llama.cpp goes unnoticed: a family serves it, or a line says why
not."""

from __future__ import annotations

import pytest

from penstock.families.served import FAMILIES
from tests.docs.snippets import text_of
from tests.reference.registered import (
    TASKS,
    Unserved,
    is_served_architecture,
    is_served_class,
    only_a_head_of_tokens,
    registered_architectures,
    registered_classes,
    unserved,
)

ASKED_FOR = (
    "Muse Glimmer",
    "Ling 3.0",
    "GLM-5.3-Flash",
    "Qwen3.8-Flash-Next",
    "Spark-X2.5",
    "K2-Horizon",
    "Kimi K3",
    "Hy4",
    "Inkling",
    "EXAONE 4.5",
    "Zaya",
    "MiniMax M1",
    "Nanbeige",
    "DeepSeek V4.1",
    "DFlash",
    "DSpark",
    "Llama 3.2 Vision",
    "Phi-3-small",
    "LLaVA 1.5 as its makers write it",
)
"""Models that people have asked for, as the page names them."""
LISTED = unserved()


def reasons(name: str) -> list[str]:
    return [each.why for each in LISTED if each.covers(name)]


def test_every_class_is_served_or_listed_with_one_reason() -> None:
    """HOW to go on: a family (CONTRIBUTING.md), or a line in docs/reference/unserved.toml."""
    classes = registered_classes()
    assert len(classes) > 600
    unknown = {
        name
        for name, kind in classes.items()
        if not is_served_class(name, kind) and not only_a_head_of_tokens(name)
        if len(reasons(name)) != 1
    }
    assert not unknown, sorted(unknown)


def test_every_architecture_is_served_or_listed_with_one_reason() -> None:
    architectures = registered_architectures()
    assert len(architectures) > 130
    listed = [name for each in LISTED for name in each.architectures]
    unknown = {
        name
        for name in architectures
        if not is_served_architecture(name) and listed.count(name) != 1
    }
    assert not unknown, sorted(unknown)


def test_nothing_that_is_served_is_listed() -> None:
    served = {name for name, kind in registered_classes().items() if is_served_class(name, kind)}
    assert not {name for name in served if reasons(name)}
    assert not {
        name for each in LISTED for name in each.architectures if is_served_architecture(name)
    }


UNREGISTERED = {
    "DeepseekV41ForCausalLM",
    "K2HorizonForCausalLM",
    "LlavaLlamaForCausalLM",
    "LlavaMistralForCausalLM",
    "Phi3SmallForCausalLM",
    "SparkX25ForCausalLM",
}
"""Classes that makers' own code has alone."""


@pytest.mark.parametrize("each", LISTED, ids=lambda each: each.why[:40])
def test_all_that_is_listed_exists(each: Unserved) -> None:
    """Else a name may be misspelt, or have gone."""
    classes, architectures = registered_classes(), registered_architectures()
    for name in set(each.classes) - UNREGISTERED:
        alone = Unserved("", "", (name,), ())
        assert any(map(alone.covers, classes)), name
    assert not set(each.architectures) - architectures
    assert each.classes or each.architectures
    assert each.why


@pytest.mark.parametrize("name", ASKED_FOR)
def test_what_is_asked_for_is_on_the_page(name: str) -> None:
    page = text_of("docs/reference/families.md")
    assert name in page


def test_a_class_stands_for_its_relatives_and_no_others() -> None:
    ernie = Unserved("", "", ("Ernie",), ())
    assert all(map(ernie.covers, ("ErnieForCausalLM", "ErnieForMaskedLM", "ErnieModel")))
    assert not any(map(ernie.covers, ("Ernie4_5ForCausalLM", "ErnieMForMaskedLM", "XErnieModel")))


def test_a_new_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.auto import modeling_auto

    new = {"newest": "NewestForCausalLM"}
    monkeypatch.setattr(modeling_auto, f"MODEL_FOR_{TASKS[0]}_MAPPING_NAMES", new)
    with pytest.raises(AssertionError, match="NewestForCausalLM"):
        test_every_class_is_served_or_listed_with_one_reason()


def test_families_are_known_by_their_classes() -> None:
    for family in FAMILIES.values():
        assert all(is_served_class(name, "") for name in family.hub_classes)
