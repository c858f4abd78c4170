"""Models with several chat templates: the one that fits a conversation is filled, as it is where it
stands alone."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.prepare import prepare
from penstock.prepare.chat_templates import one_template
from penstock.text.template import ChatTemplate
from testing.tiny_models import write_gguf, write_hub_folder
from tests.shared.text.test_template_corpus import CONVERSATIONS, FOLDER, NAMES, TOOLS, template_of

pytestmark = pytest.mark.timeout(300)

DOCUMENTS = [{"title": "Tides", "text": "They come twice a day."}]
ODD = "\n\n  {% if true %}\n  a{% endif %}\n\t {% set x = 1 -%}\n  {{ x }}\n   \n  "
"""Blanks and line breaks at both ends."""


@cache
def _source(name: str) -> str:
    return ODD if name == "odd" else (FOLDER / f"{name}.jinja").read_text()


def _filled(template: ChatTemplate, messages: list[dict[str, Any]], **given: Any) -> str | None:
    try:
        return template.render(messages, **given)
    except InvalidRequest:
        return None


@pytest.mark.parametrize("name", [*NAMES, "odd"])
def test_each_is_filled_as_if_it_stood_alone(name: str) -> None:
    others = [each for each in (*NAMES, "odd") if each != name]
    alone = template_of(_source(name))
    other = others[len(name) % len(others)]
    branches = {
        "default": {},
        "tool_use": {"tools": TOOLS},
        "rag": {"documents": DOCUMENTS},
    }
    for branch, given in branches.items():
        named = {each: _source(name if each == branch else other) for each in branches}
        whole = template_of(one_template(named))
        shown = 0
        for messages in CONVERSATIONS.values():
            expected = _filled(alone, messages, **given)
            assert _filled(whole, messages, **given) == expected
            shown += expected is not None
        assert shown >= 3


def test_tools_come_before_documents_and_unknown_names_count_for_nothing() -> None:
    named = {"default": "d", "tool_use": "t", "rag": "r", "other": "o"}
    template = template_of(one_template(named))
    user = [{"role": "user", "content": "Hi"}]
    assert template.render(user, tools=TOOLS, documents=DOCUMENTS) == "t"
    assert template.render(user, tools=[], documents=DOCUMENTS) == "r"
    assert template.render(user, tools=[], documents=[]) == "d"
    assert one_template({"default": "d", "other": "o"}) == "d"
    assert one_template({"other": "o"}) == "o"
    assert one_template({}) == ""


NAMED = [
    {"name": name, "template": f"{{{{ '{name}' }}}}"} for name in ("tool_use", "default", "rag")
]


def _folder(path: Path, files: dict[str, str], setting: Any) -> Path:
    folder = write_hub_folder(path, tokenizer_config={"chat_template": setting})
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("files", "setting"),
    [
        ({}, NAMED),
        (
            {
                "chat_template.jinja": "{{ 'default' }}",
                "additional_chat_templates/tool_use.jinja": "{{ 'tool_use' }}",
                "additional_chat_templates/rag.jinja": "{{ 'rag' }}",
            },
            "{{ 'the settings' }}",
        ),
        (
            {
                "additional_chat_templates/tool_use.jinja": "{{ 'tool_use' }}",
                "additional_chat_templates/rag.jinja": "{{ 'rag' }}",
            },
            "{{ 'default' }}",
        ),
        ({"chat_template.json": json.dumps({"chat_template": NAMED})}, None),
    ],
    ids=["settings", "files", "files beside the settings", "JSON"],
)
def test_a_folder_has_all_of_them(tmp_path: Path, files: dict[str, str], setting: Any) -> None:
    folder = _folder(tmp_path / "m", files, setting)
    _check(prepare(str(folder), cache_dir=str(tmp_path / "cache")))


def test_a_gguf_file_has_all_of_them(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", adjust=lambda w: w.add_chat_template(NAMED))
    _check(prepare(str(path), cache_dir=str(tmp_path / "cache")))


def _check(prepared: Path) -> None:
    template = template_of((prepared / "chat_template.jinja").read_text())
    user = [{"role": "user", "content": "Hi"}]
    assert template.render(user) == "default"
    assert template.render(user, tools=TOOLS) == "tool_use"
    assert template.render(user, documents=DOCUMENTS) == "rag"


def test_a_changed_file_is_prepared_again(tmp_path: Path) -> None:
    file = "additional_chat_templates/tool_use.jinja"
    folder = _folder(tmp_path / "m", {file: "{{ 1 }}"}, "{{ 0 }}")
    user = [{"role": "user", "content": "Hi"}]
    for text in ("1", "22"):
        (folder / file).write_text(f"{{{{ {text} }}}}")
        prepared = prepare(str(folder), cache_dir=str(tmp_path / "cache"))
        template = template_of((prepared / "chat_template.jinja").read_text())
        assert template.render(user, tools=TOOLS) == text


@pytest.mark.parametrize(
    ("files", "setting", "says"),
    [
        ({}, NAMED[::2], "named 'default'"),
        ({}, [{"name": "default", "template": 5}], "a list of named texts"),
    ],
)  # fmt: skip
def test_named_templates_without_a_default_or_a_text_are_refused(
    tmp_path: Path, files: dict[str, str], setting: Any, says: str
) -> None:
    folder = _folder(tmp_path / "m", files, setting)
    with pytest.raises(UnsupportedModel, match=says):
        prepare(str(folder), cache_dir=str(tmp_path / "cache"))
