"""What the table of families says of files of releases is what the tests read."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from penstock.families.served import FAMILIES
from tests.shared.formats.all_cases import ALL
from tests.shared.formats.hands import HANDS
from tests.shared.releases.evidence import TEMPLATES, TOKENIZERS, VOCABULARIES, WEIGHTS
from tests.shared.releases.reading import READ

ROOT = Path(__file__).parents[3]
PARITY = "tests.worker.models.parity"
FOLDER = Path(os.environ.get("PENSTOCK_RELEASES", ""))


def test_families_are_known() -> None:
    named = {*VOCABULARIES.values(), *TOKENIZERS.values(), *TEMPLATES.values()}
    named |= {family for family, _ in WEIGHTS.values()}
    assert named - {""} <= FAMILIES.keys()


def test_templates_of_other_tests_are_listed() -> None:
    cases = {name for family in ALL for name in (*family.templates, *family.called)}
    assert cases | {name for hand in HANDS for name in hand.templates} <= TEMPLATES.keys()
    assert {hand.tokenizer for hand in HANDS} - {""} <= TOKENIZERS.keys()


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_compared_with_transformers(name: str) -> None:
    _, test = WEIGHTS[name]
    assert has_reference((ROOT / test).read_text(encoding="utf-8"))


def test_the_word_alone_is_no_comparison() -> None:
    said = '"""Beside transformers."""\nfrom transformers import AutoModel\n'
    assert not has_reference(said)
    assert not has_reference("AutoModel.from_pretrained(folder)")
    assert has_reference(said + "AutoModel.from_pretrained(folder)")
    helped = f"from {PARITY} import compare\n"
    assert not has_reference(helped)
    assert has_reference(helped + "compare(model, transformers_model, prompts, 16)")


def has_reference(test: str) -> bool:
    """Whether a test's source loads a model by transformers, or calls the helper that compares with
    such a model."""
    nodes = list(ast.walk(ast.parse(test)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    methods = {each.attr for each in called if isinstance(each, ast.Attribute)}
    functions = {each.id for each in called if isinstance(each, ast.Name)}
    helpers = {each.name for node in imports if node.module == PARITY for each in node.names}
    theirs = any(node.module == "transformers" for node in imports)
    return (theirs and "from_pretrained" in methods) or bool(helpers & functions)


@pytest.mark.skipif(
    "PENSTOCK_RELEASES" not in os.environ or not FOLDER.is_dir(),
    reason="PENSTOCK_RELEASES names no folder with files of releases",
)
def test_what_is_listed_is_there() -> None:
    models = FOLDER / "llamacpp/models"
    vectors = {path.name.removesuffix(".gguf.out") for path in models.glob("*.gguf.out")}
    assert {name.removeprefix("ggml-vocab-") for name in vectors} == VOCABULARIES.keys()
    assert {path.stem for path in (models / "templates").glob("*.jinja")} == TEMPLATES.keys()
    assert {path.name for path in (FOLDER / "tokenizers").iterdir()} == TOKENIZERS.keys()


def test_readme_says_how_many() -> None:
    tokenizers = len(VOCABULARIES) + len(TOKENIZERS)
    said = f"config.json of {len(READ)} releases, {tokenizers} tokenizers and {len(TEMPLATES)} chat"
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")
