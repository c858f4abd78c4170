"""Templates of releases: each is recognised, and what it writes of a call is read back.

They aren't part of the repository: PENSTOCK_RELEASES names the folder where they lie.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.prepared_model import GenerationDefaults
from penstock.parsing import CallArguments, CallBegin, reasoning_parser, tool_parser
from penstock.parsing.format import ThoughtFormat
from penstock.parsing.formats import FORMATS
from penstock.parsing.output import whole_parser
from penstock.text.call_arguments import written_arguments
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import sentencepiece_tokenizer
from tests.shared.formats.all_cases import ALL
from tests.shared.formats.case import TOOLS, FormatCases
from tests.shared.formats.test_formats import read

FOLDER = Path(os.environ.get("PENSTOCK_RELEASES", "")) / "llamacpp/models/templates"
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        "PENSTOCK_RELEASES" not in os.environ or not FOLDER.is_dir(),
        reason="PENSTOCK_RELEASES names no folder with the templates of releases",
    ),
]
TEMPLATES = [
    pytest.param(family, name, id=name)
    for family in ALL
    for name in (*family.templates, *family.called)
]


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """Command R's template wants a description of each property."""
    properties = {key: {"description": "d", **each} for key, each in schema["properties"].items()}
    return {**schema, "properties": properties}


ARGUMENTS = {"city": 'São "Paulo"\n1', "days": 3, "tags": ["a", "b"], "sure": True}
GIVEN = written_arguments(json.dumps(ARGUMENTS, ensure_ascii=False))
SHOWN = [
    {
        "type": "function",
        "function": {"name": name, "description": "d", "parameters": described(schema)},
    }
    for name, schema in TOOLS.items()
    if schema is not None
]


@pytest.fixture
def template(request: pytest.FixtureRequest) -> Iterator[ChatTemplate]:
    source = (FOLDER / f"{request.param}.jinja").read_text()
    content = sentencepiece_tokenizer().to_str().encode()
    tokenizer = Tokenizer.from_bytes(content, add_bos=True, bos_token_id=1)
    generation = GenerationDefaults(eos_token_ids=(2,), bos_token_id=1)
    made = ChatTemplate(source, tokenizer, generation=generation)
    yield made
    made.close()


@pytest.mark.parametrize(("family", "template"), TEMPLATES, indirect=["template"])
def test_a_call_is_read_back(family: FormatCases, template: ChatTemplate) -> None:
    """The model writes a call as the template would show it to the model later."""
    user: dict[str, Any] = {"role": "user", "content": "What is the weather?"}
    call = {
        "id": "functions.get_weather:0",
        "type": "function",
        "function": {"name": "get_weather", "arguments": GIVEN},
    }
    answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    asked = template.render([user], add_generation_prompt=True, tools=SHOWN)
    told = template.render([user, answer], add_generation_prompt=False, tools=SHOWN)
    text = told[_shared(asked, told) :]
    tools = tool_parser("auto", template.source)
    assert (tools.name, tools.known) == (tool_parser(family.tools, "").name, True)
    thoughts = reasoning_parser("auto", template.source)
    parser = whole_parser(tools, thoughts, TOOLS, "", {})
    events = [*parser.push(text), *parser.finish()]
    calls = [event for event in events if isinstance(event, CallBegin | CallArguments)]
    assert read(calls).calls == (("get_weather", ARGUMENTS),)


def _shared(one: str, other: str) -> int:
    """Letters that two texts begin with alike, without half of a mark."""
    pairs = zip(one, other, strict=False)
    alike = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    begun = other.rfind("<", 0, alike)
    return begun if begun > other.rfind(">", 0, alike) else alike


def test_no_template_is_taken_for_two() -> None:
    expected = {name: family.tools for family in ALL for name in family.recognised}
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_text()
        if path.stem in expected:
            assert tool_parser("auto", source).name == expected[path.stem]
        found = [
            form.name
            for form in FORMATS
            if not isinstance(form, ThoughtFormat)
            and form.names
            and form.recognised.by_template(source)
        ]
        assert len(found) <= 1, path.name
