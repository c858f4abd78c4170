"""How the first answers are judged."""

from __future__ import annotations

import pytest

from loadtest.first_answers import QUESTIONS, faults, is_right, problems

RAIN = "Rain forms when the water of the sea is warmed by the sun and goes up as vapour. It cools."


@pytest.mark.parametrize(
    ("text", "ended", "language", "expected"),
    [
        (RAIN, True, "en", []),
        ("Paris.", True, "fr", []),
        ("La capitale de la France est Paris, et le pays est en Europe.", True, "fr", []),
        ("1. Apples\n2. Bananas\n3. Oranges", True, "en", []),
        (" \n", True, "en", ["empty"]),
        (RAIN, False, "en", ["did not end"]),
        (RAIN, True, "de", ["other language"]),
        ("水が空に昇り、雲になります。", True, "en", ["other language"]),
        ("The cat sat on the mat. " * 8, True, "en", ["repeats itself"]),
        ("- rice\n- beans\n- rice\n- rice\n- rice\n", True, "en", ["repeats itself"]),
        ("def add(a, b):\n    return a + b", True, "code", []),
    ],
)
def test_what_is_wrong_with_an_answer(
    text: str, ended: bool, language: str, expected: list[str]
) -> None:
    assert problems(text, ended, language) == expected


@pytest.mark.parametrize(
    ("text", "right", "expected"),
    [
        ("It is PARIS, of course.", ("Paris",), True),
        ("It is Parisian.", ("Paris",), False),
        ("The answer is 256.", ("56",), False),
        ("The answer is 56.", ("56",), True),
        ("Use names[::-1].", ("reverse", "[::-1]"), True),
    ],
)
def test_a_right_answer_has_the_word_as_a_word(
    text: str, right: tuple[str, ...], expected: bool
) -> None:
    assert is_right(text, right) is expected


def test_sixty_questions_differ() -> None:
    assert len({question.text for question in QUESTIONS}) == 60


def test_too_few_sane_answers_are_a_fault_of_the_page_alone() -> None:
    assert faults({"sane": 0.8, "plain": False})
    assert not faults({"sane": 0.8, "plain": True})
    assert not faults({"sane": 0.9, "plain": False})
