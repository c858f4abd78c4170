"""How answers are judged and told."""

from __future__ import annotations

import pytest

from loadtest.questions.report import (
    LLAMACPP,
    Question,
    interval,
    questions,
    rights,
    to_markdown,
)
from penstock.machine import describe_machine

PRIMARY = Question("Primary colours?", ["red", "blue", "yellow|green"])


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Red, blue and green.", True),
        ("RED! Blue? yellow", True),
        ("Red and blue.", False),
        ("Reddish, blue, green", False),
        ("", False),
    ],
)
def test_every_expected_word_must_stand_there_whole(answer: str, right: bool) -> None:
    assert PRIMARY.is_right(answer) is right


def test_a_number_within_another_is_none() -> None:
    four = Question("2 + 2?", ["4|four"])
    assert [four.is_right(each) for each in ("= 4.", "42", "four", "14")] == [
        True,
        False,
        True,
        False,
    ]


def test_there_are_twenty() -> None:
    asked = questions()
    assert len({each.question for each in asked}) == 20
    assert all(each.expected and not each.is_right("I don't know.") for each in asked)


def test_the_interval_of_a_share() -> None:
    """Wilson's, as published for 10 of 20, and bounded at the ends."""
    assert interval(10, 20) == pytest.approx((0.299, 0.701), abs=5e-4)
    low, high = interval(20, 20)
    assert 0.8 < low < high <= 1.0000001


def test_the_page_names_everybody_and_what_they_said() -> None:
    asked = [PRIMARY, Question("Say hello.", ["hello"])]
    answers = {
        "HTTP": [["red, blue, yellow"], ["Good day | <b>"]],
        LLAMACPP: [["red"], ["Hello!"]],
    }
    assert rights(asked, answers["HTTP"]) == [1, 0]
    facts = {
        "command": "python -m loadtest.questions",
        "started": "2026-11-22T00:00:00",
        "machine": describe_machine(),
    }
    document = {
        "model": "m.gguf",
        "versions": "penstock 1, llama.cpp 2",
        "seeds": "0 to 4",
        "max_tokens": 128,
        "prompts": "equal",
        "answers": answers,
        "example": [{"question": "Why?", "seeds": 20, "penstock": 19, LLAMACPP: 18}],
    }
    page = to_markdown({**facts, **document}, asked)
    assert "- HTTP (right): red, blue, yellow" in page
    assert "- HTTP (wrong): Good day \\| &lt;b>" in page
    assert "- llama.cpp (right): Hello!" in page
    assert "19 of 20" in page
    assert "18 of 20" in page
