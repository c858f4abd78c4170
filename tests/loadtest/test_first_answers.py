"""How the first answers are judged."""

from __future__ import annotations

import pytest

from loadtest.first_answers import QUESTIONS, faults, is_right, markdown, problems

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


def test_the_page_of_starts_has_medians_of_each_system() -> None:
    """Of each process too; one that wasn't there yet had taken nothing."""
    rows = [
        {"system": system, "ready_s": ready, "first_token_s": ready + 0.25, "cpu_s": cpu}
        for system, ready, cpu in [
            ("penstock", 1.5, {"server": 0.25, "worker 0": 1.0}),
            ("llamacpp", 0.5, {"server": 0.5}),
            ("penstock", 4.0, {"server": 0.5, "worker 0": 2.5, "grammars": 1.0}),
            ("penstock", 2.0, {"server": 0.75, "worker 0": 1.5}),
        ]
    ]
    machine = {"cpu": "A", "cores": 2, "memory_bytes": 2**30, "python": "3.11"}
    facts = {"command": "it", "started": "2026-11-27T08:00:00", "machine": machine}
    page = markdown({**facts, "model": "m", "starts": 3, "realtime": False, "rows": rows})
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    parts = "server 0.50, worker 0 1.50, grammars 0.00"
    assert ["penstock", "2.00", "2.25", "2.25", parts] in lines
    assert ["llamacpp", "0.50", "0.75", "0.50", "server 0.50"] in lines
