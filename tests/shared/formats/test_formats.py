"""Each format's cases: the same events in whatever pieces, as text and as tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.parsing import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    OutputParser,
    Reasoning,
    reasoning_parser,
    tool_parser,
)
from penstock.parsing.formats import FORMATS
from penstock.parsing.interface import merged
from penstock.parsing.output import whole_parser
from tests.met import met
from tests.shared.formats.all_cases import ALL
from tests.shared.formats.case import TOOLS, Case, FormatCases
from tests.thinning import part

CASES = [
    pytest.param(family, case, id=f"{family.tools or family.thoughts}-{index}")
    for family in ALL
    for index, case in enumerate(family.cases)
]


class Marked(NamedTuple):
    """letters: by mark.  text: with letters for marks."""

    letters: dict[str, str]
    text: str


def marks_of(family: FormatCases) -> tuple[str, ...]:
    tools = tool_parser(family.tools, "").form if family.tools else None
    thoughts = reasoning_parser(family.thoughts, "")
    forms = (tools, None if thoughts is None else thoughts.form)
    found = [form.tokens for form in forms if form is not None]
    return tuple(dict.fromkeys(mark for marks in found for mark in marks))


def marked(family: FormatCases, text: str) -> Marked:
    letters = {mark: chr(0xD800 + i) for i, mark in enumerate(marks_of(family))}
    for mark, letter in letters.items():
        text = text.replace(mark, letter)
    return Marked(letters, text)


def maker(family: FormatCases, prompt: str, letters: dict[str, str]) -> Callable[[], OutputParser]:
    tools = tool_parser(family.tools, "") if family.tools else None
    thoughts = reasoning_parser(family.thoughts, "") if family.thoughts else None
    return lambda: whole_parser(tools, thoughts, TOOLS, prompt, letters)


def parse(make: Callable[[], OutputParser], *pieces: str) -> list[Event]:
    parser = make()
    events: list[Event] = []
    for piece in pieces:
        events += parser.push(piece)
    return merged([*events, *parser.finish()])


def read(events: Sequence[Event]) -> Case:
    """What the events say, without text and prompt."""
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallBegin):
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return Case(
        "",
        said="".join(e.text for e in events if isinstance(e, Content)),
        thought="".join(e.text for e in events if isinstance(e, Reasoning)),
        calls=tuple((name, json.loads(arguments)) for name, arguments in calls),
        ids=tuple(e.id for e in events if isinstance(e, CallBegin) and e.id),
    )


@pytest.mark.parametrize(("family", "case"), CASES)
@pytest.mark.parametrize("as_tokens", [False, True])
def test_what_a_text_says(family: FormatCases, case: Case, as_tokens: bool) -> None:
    letters, text = marked(family, case.text) if as_tokens else Marked({}, case.text)
    found = read(parse(maker(family, case.prompt, letters), text))
    assert found.calls == case.calls
    assert found.thought == case.thought
    if as_tokens or not (marks_of(family) and not case.said):
        said = found.said
        for mark, letter in letters.items():
            said = said.replace(letter, mark)
        assert said == case.said
    if case.ids:
        assert found.ids == case.ids


@pytest.mark.parametrize(("family", "case"), CASES)
@pytest.mark.parametrize("as_tokens", [False, True])
def test_no_piece_matters(family: FormatCases, case: Case, as_tokens: bool) -> None:
    """Each cut in two, and letter by letter; and each beginning, as an answer cut short is."""
    letters, text = marked(family, case.text) if as_tokens else Marked({}, case.text)
    make = maker(family, case.prompt, letters)
    whole = parse(make, text)
    assert parse(make, *text) == whole
    for cut in range(len(text)):
        assert parse(make, text[:cut], text[cut:]) == whole
    for cut in range(0, len(text), 3):
        assert parse(make, *text[:cut]) == parse(make, text[:cut])


@settings(max_examples=part(60, 1 / 3), deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("family", ALL, ids=lambda family: family.tools or family.thoughts)
def test_no_piece_matters_of_any_text(family: FormatCases, data: st.DataObject) -> None:
    """Pieces of the cases in any order, some of them cut."""
    fragments = [
        piece for case in family.cases for piece in _fragments(marked(family, case.text).text)
    ]
    chosen = st.lists(st.sampled_from(fragments) | st.text(max_size=3), max_size=12)
    drawn = data.draw(chosen)
    if data.draw(st.booleans()):  # Few texts of fragments alone hold a whole call.
        case = data.draw(st.sampled_from(family.cases))
        drawn.insert(data.draw(st.sampled_from([0, len(drawn)])), marked(family, case.text).text)
    text = "".join(drawn)
    letters = marked(family, "").letters
    prompt = data.draw(st.sampled_from([case.prompt for case in family.cases]))
    make = maker(family, prompt, letters)
    whole = parse(make, text)
    met("what is no plain text", not all(isinstance(each, Content) for each in whole))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(make, *pieces) == whole
    assert parse(make, *text) == whole


def _fragments(text: str) -> list[str]:
    """The text at its angle brackets, letters for marks, and lines."""
    pieces, piece = [], ""
    for letter in text:
        if letter in "<\n{" or letter >= "\ud800":
            pieces.append(piece)
            piece = ""
        piece += letter
        if letter in ">}" or letter >= "\ud800":
            pieces.append(piece)
            piece = ""
    return [*pieces, piece]


@pytest.mark.parametrize(("family", "case"), CASES)
def test_what_is_held_back_is_bounded(family: FormatCases, case: Case) -> None:
    """However a text goes on without end from any place of a case."""
    for cut in range(0, len(case.text) + 1, max(len(case.text) // 5, 1)):
        parser = maker(family, case.prompt, {})()
        parser.push(case.text[:cut])
        for _ in range(7):
            parser.push("1" * 10_000)
        assert parser.held < 70_000


def test_every_format_has_cases() -> None:
    names = {name for family in ALL for name in (family.tools, family.thoughts)}
    spoken = [{*form.names, *getattr(form, "reasoning_names", ())} for form in FORMATS]
    known = {each for names_of_one in spoken for each in names_of_one}
    older = {"hermes", "llama3_json", "mistral", "json"}  # in test_parsing.py
    assert all(not names.isdisjoint(each) for each in spoken if older.isdisjoint(each))
    assert names - {""} <= known
