"""What one walk over a conversation finds is what a search for each of it finds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.text.arrangement import Message, traits_of
from tests.met import met

TEXTS = st.sampled_from(("", "quince", "quince \n", " "))
PARTS = st.lists(
    st.sampled_from(({"type": "text", "text": "medlar"}, {"type": "image"})), max_size=3
)
CALLS = st.lists(st.just({"id": "a", "type": "function"}), max_size=3)


def _messages() -> st.SearchStrategy[list[Message]]:
    message = st.fixed_dictionaries(
        {
            "role": st.sampled_from(("system", "user", "assistant", "tool")),
            "content": TEXTS | PARTS,
        },
        optional={"tool_calls": CALLS, "reasoning_content": TEXTS},
    )
    return st.lists(message, max_size=5)


def _length(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(len(part["text"]) for part in content if part["type"] == "text")


@given(_messages())
@example([{"role": "user", "content": "quince"}, {"role": "user", "content": "quince"}])
@example([{"role": "tool", "content": "quince"}, {"role": "tool", "content": "quince"}])
def test_each_is_found_as_a_search_for_it_alone_finds_it(messages: list[Message]) -> None:
    found = traits_of(messages)
    roles = [each["role"] for each in messages]
    calls = [each.get("tool_calls") or [] for each in messages]
    repeated = [one for one, other in pairwise(roles) if one == other != "tool"]
    met("two turns of a role alone", repeated and "system" not in roles and not any(calls))
    assert found.characters == sum(_length(each["content"]) for each in messages)
    assert found.of_tools == (any(calls) or "tool" in roles)
    assert found.simple == (
        "system" not in roles and not repeated and all(len(each) < 2 for each in calls)
    )
    assert found.thinks == any(each.get("reasoning_content") for each in messages)
    assert found.spaced == any(
        made and isinstance(text, str) and text.strip() and text[-1].isspace()
        for made, text in zip(calls, (each["content"] for each in messages), strict=True)
    )
