"""Conversations in turns that a template takes: nothing is lost, and nothing changes where the
template shows them as they are."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.text.template import ChatTemplate
from penstock.text.template_shape import TurnShape, arranged
from tests.shared.text.test_template_corpus import FOLDER, NAMES, template_of

WORDS = ("rowan", "alder", "hazel", "maple", "aspen", "birch", "cedar", "larch", "willow")
ROLES = (
    "system",
    "system",
    "user",
    "user",
    "system",
    "assistant",
    "assistant",
    "system",
    "user",
)
AGENT = [{"role": role, "content": word} for role, word in zip(ROLES, WORDS, strict=True)]

FIRST_ONLY = """{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}
{%- endif %}
{{- '<|' + m.role + '|>' + m.content }}
{%- endfor %}"""
"""The rule of Qwen3.5's templates."""
DROPS_OTHERS = """{%- if messages[0].role == 'system' %}{{ '<|system|>' + messages[0].content }}
{%- endif %}
{%- for m in messages if m.role != 'system' %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"""
"""The rule of gpt-oss's, MiniMax's and SmolLM3's templates: other system messages are left out
without a word."""
ALTERNATES = """{%- set turns = namespace(n=0) %}
{%- for m in messages %}
{%- if m.role != 'system' or not loop.first %}
{%- if (m.role == 'user') != (turns.n % 2 == 0) %}
{{- raise_exception('They alternate.') }}
{%- endif %}
{%- set turns.n = turns.n + 1 %}
{%- endif %}
{{- '<|' + m.role + '|>' + m.content }}
{%- endfor %}"""
"""The rule of Mistral's newer templates."""
NO_SYSTEM = (
    "{%- if messages[0].role == 'system' %}{{ raise_exception('No.') }}{% endif %}" + ALTERNATES
)
"""The rule of Gemma 2's template."""
PARTS = """{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('No.') }}{% endif %}
{{- '<|' + m.role + '|>' }}
{%- for part in m.content %}{{ part.text }}{% endfor %}
{%- endfor %}"""
"""One that takes a content of parts alone."""

EXPECTED = {
    FIRST_ONLY: "<|system|>rowan\n\nalder<|user|>hazel<|user|>maple\n\naspen<|assistant|>birch"
    "<|assistant|>cedar<|user|>larch\n\nwillow",
    ALTERNATES: "<|system|>rowan\n\nalder<|user|>hazel\n\nmaple\n\naspen<|assistant|>birch\n\ncedar"
    "<|user|>larch\n\nwillow",
    NO_SYSTEM: "<|user|>rowan\n\nalder\n\nhazel\n\nmaple\n\naspen<|assistant|>birch\n\ncedar"
    "<|user|>larch\n\nwillow",
}
EXPECTED[DROPS_OTHERS] = EXPECTED[FIRST_ONLY]


@pytest.mark.parametrize("source", list(EXPECTED))
def test_turns_become_what_a_template_takes(source: str) -> None:
    template = template_of(source)
    assert not _all_shown(template, AGENT)
    assert (
        template.render(template.arranged(AGENT), add_generation_prompt=False) == EXPECTED[source]
    )


def test_a_template_that_takes_parts_is_asked_with_parts() -> None:
    template = template_of(PARTS)
    plain = template.arranged(AGENT)
    assert [each["role"] for each in plain] == [
        "system",
        "user",
        "user",
        "assistant",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_no_template_loses_a_word(name: str) -> None:
    template = _named(name)
    taken = _all_shown(template, AGENT)
    plain = template.arranged(AGENT)
    assert _all_shown(template, plain)
    if taken:
        assert plain == AGENT


@pytest.mark.parametrize("source", list(EXPECTED))
def test_a_longer_conversation_begins_with_the_shorter_one(source: str) -> None:
    """Up to each answer: there the cache has what a turn left."""
    template = template_of(source)
    ends = [n + 1 for n, role in enumerate(ROLES) if role == "assistant"]
    whole = template.render(template.arranged(AGENT), add_generation_prompt=False)
    for end in ends:
        shorter = template.arranged(AGENT[:end])
        assert whole.startswith(template.render(shorter, add_generation_prompt=False))


def test_calls_thoughts_and_pictures_are_kept() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    picture = [{"type": "image"}, {"type": "text", "text": "this"}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Look."},
        {"role": "user", "content": picture},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm."},
        {"role": "assistant", "content": "", "reasoning_content": "Well.", "tool_calls": [call]},
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": "b"},
        {"role": "assistant", "content": "Done."},
    ]
    assert arranged(messages, TurnShape(users=False, assistants=False)) == [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, *picture]},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.\nWell.",
            "tool_calls": [call],
        },
        *messages[4:],
    ]
    assert arranged(messages, TurnShape()) == messages


def test_many_turns_are_arranged_in_time_that_grows_as_they_do() -> None:
    """Joined one by one, these would be copied for many minutes."""
    many = [{"role": "user", "content": "x" * 40}] * 200_000
    before = time.thread_time()
    (whole,) = arranged(many, TurnShape(users=False))
    assert time.thread_time() - before < 20
    assert whole["content"] == "\n\n".join(["x" * 40] * 200_000)


def test_calls_of_one_turn_become_turns_with_their_own_results() -> None:
    ids = ["a", "b", "a", None, "c"]
    calls = [{"id": id, "function": {"name": str(at)}} for at, id in enumerate(ids)]
    told = ["b", "x", "a", "c", "y", None, "a", "x"]
    results = [
        {"role": "tool", "tool_call_id": id, "content": str(at)} for at, id in enumerate(told)
    ]
    turn = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    end = {"role": "user", "content": "Well?"}
    found = arranged([turn, *results, end], TurnShape(calls=False))
    shown = [
        each["tool_calls"][0]["function"]["name"] if "tool_calls" in each else each["content"]
        for each in found
    ]
    # Call 0 (a), results 2 and 6; call 1 (b), 0; 2 (a); 3 (None), 5; 4 (c), 3; and of none.
    assert shown == ["0", "2", "6", "1", "0", "2", "3", "5", "4", "3", "1", "4", "7", "Well?"]
    assert [each["content"] for each in found if "tool_calls" in each] == ["I look.", *[""] * 4]


def test_many_calls_of_one_turn_take_time_that_grows_as_they_do() -> None:
    def took(count: int) -> float:
        calls = [{"id": f"call{at}", "function": {"name": "f"}} for at in range(count)]
        results = [
            {"role": "tool", "tool_call_id": f"call{at}", "content": ""} for at in range(count)
        ]
        turn = {"role": "assistant", "content": "", "tool_calls": calls}
        before = time.thread_time()
        found = arranged([turn, *results], TurnShape(calls=False))
        spent = time.thread_time() - before
        assert len(found) == 2 * count
        return spent

    few = min(took(1_000) for _ in range(5))
    assert min(took(8_000) for _ in range(3)) < 30 * few, "8 times as many; the square were 64"


def test_a_broken_template_refuses_in_its_own_words() -> None:
    template = template_of("{{ raise_exception('Nothing, please.') }}")
    assert template.arranged(AGENT) == AGENT
    with pytest.raises(InvalidRequest, match="Nothing, please"):
        template.render(template.arranged(AGENT))


def _all_shown(template: ChatTemplate, messages: list[dict[str, Any]]) -> bool:
    try:
        text = template.render(messages)
    except InvalidRequest:
        return False
    return all(word in text for word in WORDS)


@cache
def _named(name: str) -> ChatTemplate:
    return template_of((FOLDER / f"{name}.jinja").read_text())


SAYS_CALLS = """{%- for m in messages %}{{- '<|' + m.role + '|>' + m.content }}
{%- for call in CALLS %}{{ call.function.name + call.function.arguments['at'] }}{% endfor %}
{%- endfor %}"""
ONE_CALL = (
    "{%- for m in messages if (m.tool_calls or [])|length > 1 %}{{ raise_exception('One!') }}"
)
ONE_CALL += "{% endfor %}" + SAYS_CALLS.replace("CALLS", "m.tool_calls or []")
"""The rule of Llama 3.1's template."""
FIRST_CALL = SAYS_CALLS.replace("CALLS", "(m.tool_calls or [])[:1]")
"""The rule of gpt-oss's template: other calls are left out without a word."""


def _calls(*words: str) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "id": word,
            "function": {"name": "look", "arguments": {"at": word}},
        }
        for word in words
    ]


CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "rowan"},
    {"role": "assistant", "content": "alder", "tool_calls": _calls("hazel", "maple")},
    {"role": "tool", "tool_call_id": "maple", "content": "aspen"},
    {"role": "tool", "tool_call_id": "hazel", "content": "birch"},
    {"role": "assistant", "content": "cedar"},
]


@pytest.mark.parametrize("source", [ONE_CALL, FIRST_CALL])
def test_several_calls_of_a_turn_are_shown_one_after_another(source: str) -> None:
    template = template_of(source)
    shown = [
        template.render(template.arranged(CALLING[:end]), add_generation_prompt=False)
        for end in (1, 4, 5)
    ]
    assert shown[-1] == (
        "<|user|>rowan<|assistant|>alderlookhazel<|tool|>birch<|assistant|>lookmaple<|tool|>aspen"
        "<|assistant|>cedar"
    )
    assert all(shown[-1].startswith(each) for each in shown)


def test_calls_stay_together_where_a_template_shows_them() -> None:
    for calls in ("m.tool_calls or []", "[]"):
        template = template_of(SAYS_CALLS.replace("CALLS", calls))
        assert template.arranged(CALLING) == CALLING


def test_thoughts_are_given_once() -> None:
    """Under three names, 32 MB of them held the event loop for 0.07 s."""
    message = {"role": "assistant", "content": "birch"}
    thoughts = {"reasoning_content": "hazel"}
    for shown, given in (("content", thoughts), ("thinking", {"thinking": "hazel"})):
        template = template_of(f"{{% for m in messages %}}{{{{ m.{shown} }}}}{{% endfor %}}")
        assert template.arranged([message | thoughts]) == [message | given]


@pytest.mark.parametrize("name", ["thinking", "reasoning", "reasoning_content"])
def test_thoughts_have_the_name_that_a_template_knows(name: str) -> None:
    said = f"{{% for m in messages %}}{{{{ m.{name} or '' }}}}|{{{{ m.content }}}};{{% endfor %}}"
    messages = [
        {"role": "user", "content": "rowan"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hazel",
            "tool_calls": _calls("willow"),
        },
        {"role": "tool", "content": "maple"},
    ]
    template = template_of(said)
    shown = template.render(template.arranged(messages), add_generation_prompt=False)
    assert shown == "|rowan;hazel|;|maple;"
