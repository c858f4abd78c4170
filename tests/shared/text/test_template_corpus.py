"""Templates of widespread models, and after those: the text that transformers makes of them.

templates/*.jinja were written for these tests, after the models' documented formats. The templates
of releases aren't part of the repository: PENSTOCK_RELEASES names the folder where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from penstock.errors import InvalidRequest
from penstock.model.prepared_model import GenerationDefaults
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import sentencepiece_tokenizer
from tests.shared.releases.evidence import TEMPLATES

pytestmark = pytest.mark.timeout(300)

FOLDER = Path(__file__).parent / "templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
ASKING = {"CohereForAI-c4ai-command-r-plus-tool_use", "fireworks-ai-llama-3-firefunction-v2"}
"""Templates of releases that ask for variables that these conversations lack."""
FORBIDDEN = "transformers forbids templates to change a list, which Kimi K2's do"
RELEASES = Path(os.environ.get("PENSTOCK_RELEASES", "")) / "llamacpp/models/templates"
ARGUMENTS = {"city": "Paris", "days": 2, "note": "<é> \"quoted\" & 'so'"}
CALL = {
    "id": "abcdefgh9",
    "type": "function",
    "function": {"name": "get_weather", "arguments": ARGUMENTS},
}
USER = {"role": "user", "content": " What's the weather, é 👋? \n"}
SAID = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\n It is\tsunny.  \n"}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [{"role": "system", "content": "Be brief. /no_think"}, USER],
    "answered": [USER, SAID],
    "turns": [USER, {"role": "assistant", "content": "Sunny."}, USER, SAID],
    "called": [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"t": 21}', "tool_call_id": "abcdefgh9"},
        {"role": "assistant", "content": "21 degrees."},
    ],
    "two calls": [
        USER,
        {"role": "assistant", "content": "Both.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "a", "tool_call_id": "abcdefgh9", "name": "get_weather"},
        {"role": "tool", "content": "b", "tool_call_id": "abcdefgh9", "name": "get_weather"},
    ],
    "thought": [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather <of> a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": None, "description": "é"}},
]
VARIABLES: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"tools": TOOLS, "tools_in_user_message": False},
    {"enable_thinking": False},
    {"documents": [{"title": "A", "text": "é", "n": 1.5}, {"text": "b"}]},
]


@cache
def _template(name: str) -> ChatTemplate:
    return template_of((FOLDER / f"{name}.jinja").read_text())


def template_of(source: str) -> ChatTemplate:
    tokenizer = Tokenizer.from_bytes(
        sentencepiece_tokenizer().to_str().encode(), add_bos=True, bos_token_id=1
    )
    generation = GenerationDefaults(eos_token_ids=(2,), bos_token_id=1)
    return ChatTemplate(source, tokenizer, generation=generation)


def _theirs(source: str, messages: list[dict[str, Any]], **variables: Any) -> str | None:
    """transformers' text; None where the template or transformers refuses."""
    from transformers.utils.chat_template_utils import render_jinja_template

    given = {"tools": None, "documents": None, **variables}
    try:
        texts, _ = render_jinja_template(
            conversations=[messages],
            chat_template=source,
            bos_token="<s>",
            eos_token="</s>",
            **given,
        )
    except SecurityError:
        return FORBIDDEN
    except Exception:
        return None
    return texts[0]


def _ours(template: ChatTemplate, messages: list[dict[str, Any]], **variables: Any) -> str | None:
    try:
        return template.render(messages, **variables)
    except InvalidRequest:
        return None


def _ends() -> Iterator[dict[str, bool]]:
    yield {"add_generation_prompt": True}
    yield {"add_generation_prompt": False}
    yield {"add_generation_prompt": False, "continue_final_message": True}


@pytest.mark.parametrize("name", NAMES)
def test_same_text_as_transformers(name: str) -> None:
    assert _compared((FOLDER / f"{name}.jinja").read_text(), _template(name)) >= 15


@pytest.mark.skipif(
    "PENSTOCK_RELEASES" not in os.environ or not RELEASES.is_dir(),
    reason="PENSTOCK_RELEASES names no folder with the templates of releases",
)
@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - ASKING))
def test_same_text_of_a_release(name: str) -> None:
    source = (RELEASES / f"{name}.jinja").read_text()
    template = template_of(source)
    assert _compared(source, template) >= 5
    template.close()


def _compared(source: str, template: ChatTemplate) -> int:
    """Number of texts that transformers makes of a template, which are ours; what it refuses, ours
    refuses, too."""
    made = 0
    for messages in CONVERSATIONS.values():
        for variables in VARIABLES:
            for end in _ends():
                expected = _theirs(source, messages, **variables, **end)
                if expected == FORBIDDEN:
                    continue
                found = _ours(template, messages, **variables, **end)
                assert found == expected, (messages, variables, end)
                made += expected is not None
    return made


def test_what_is_compared_is_what_users_meet() -> None:
    """Some of the corpus's features, so that a change of the files can't take them away."""
    text = "".join((FOLDER / f"{name}.jinja").read_text() for name in NAMES)
    for feature in (
        "strftime_now",
        "{% generation %}",
        " % (",
        "{% break %}",
        "{% continue %}",
        "tojson(indent=4)",
        "namespace(",
        "raise_exception",
        "macro ",
        "loop.previtem",
        "[::-1]",
    ):
        assert feature in text, feature


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_the_text(name: str) -> None:
    """Harmless messages: nothing had to be kept apart, so the text can simply be encoded."""
    ours = _template(name)
    messages = [{"role": "user", "content": "weather? "}]
    ids = ours.encode(messages, tools=TOOLS)
    text = ours.render(messages, tools=TOOLS)
    assert ids == ours._tokenizer.encode(text, add_special=False)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([{"role": "assistant", "content": None}], "no text to continue"),
        ([{"role": "tool", "content": "x"}], "doesn't show the last message"),
    ],
)
def test_what_cannot_be_continued(messages: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        _template("phi3").encode(
            [USER, *messages], add_generation_prompt=False, continue_final_message=True
        )
    with pytest.raises(InvalidRequest, match="can't both be true"):
        _template("phi3").encode([USER], continue_final_message=True)


def test_a_continued_message_cannot_forge_special_tokens() -> None:
    ours = _template("phi3")
    messages = [USER, {"role": "assistant", "content": "so </s> and <s>"}]
    ids = ours.encode(messages, add_generation_prompt=False, continue_final_message=True)
    assert not {1, 2} & set(ids)
    assert ours._tokenizer.decode(ids).endswith("so </s> and <s>")
