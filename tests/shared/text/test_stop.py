"""Stop strings against an obvious model: look for them after every character."""

from __future__ import annotations

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.text import stop as stop_module
from penstock.text.stop import IndentedText, StopMatcher
from tests.met import met
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)


def _expected(text: str, stops: list[str]) -> tuple[str, str | None, int]:
    """Shown text, the match, and how many characters had to be seen for it."""
    for seen in range(len(text) + 1):
        complete = [stop for stop in stops if text[:seen].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: seen - len(longest)], longest, seen
    return text, None, len(text)


def _could_begin(text: str, stops: list[str]) -> int:
    """Length of the longest end of the text that begins a stop string without completing it."""
    return max(
        (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0
    )


def _cut(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


LETTERS = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=6), min_size=1, max_size=5)


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 100), max_size=12))
def test_any_cutting_gives_the_same_as_one_letter_at_a_time(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    shown, match, needed = _expected(text, stops)
    met("a stop string over several pieces", match and len(_cut(text, cuts)) > 1)
    met("text without one", text and match is None)
    matcher = StopMatcher(stops)
    emitted, seen = "", 0
    for piece in _cut(text, cuts):
        new, found = matcher.push(piece)
        emitted += new
        seen += len(piece)
        if seen >= needed and match is not None:
            assert found == match, "a complete stop string must be seen with its last character"
            assert emitted == shown
            return
        assert found is None
        held = _could_begin(text[:seen], stops)
        assert emitted == text[: seen - held], "held back: what could begin a stop string, only"
    assert match is None
    assert emitted + matcher.finish() == text


def test_texts_that_end_at_the_same_strings_share_what_is_looked_for() -> None:
    strings = ["never seen", "elsewhere"]
    one, other = StopMatcher(strings), StopMatcher([*strings])
    assert one._strings is other._strings
    assert one.push("a never s") == ("a ", None)
    assert other.push("een else") == ("een ", None), "each is at a place of its own"
    assert one.push("een") == ("", "never seen")
    del one, other
    assert tuple(strings) not in stop_module._in_use, "what nobody reads by is forgotten"


def test_long_strings_take_little_memory() -> None:
    """A gateway may hold thousands of requests, each with 16 of them."""
    strings = tuple(f"{number} " + "xy" * 510 for number in range(16))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held = StopMatcher(strings)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 40 * sum(map(len, strings))
    assert held.push(strings[3]) == ("", strings[3])


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "match"),
    [
        (["Hello", " wor", "ld\nUs", "er: hi"], ["\nUser:"], "Hello world", "\nUser:"),
        (["abcd"], ["abcd", "bc"], "a", "bc"),
        (["ab", "cd"], ["abcd", "bc"], "a", "bc"),
        (["xab"], ["b", "ab"], "x", "ab"),
        (["aab"], ["ab"], "a", "ab"),
        (["end"], ["end"], "", "end"),
        (["👍", "🏽!"], ["🏽"], "👍", "🏽"),
    ],
)
def test_examples(pieces: list[str], stops: list[str], shown: str, match: str) -> None:
    matcher = StopMatcher(stops)
    emitted = ""
    for piece in pieces:
        new, found = matcher.push(piece)
        emitted += new
        if found is not None:
            break
    assert (emitted, found) == (shown, match)


def test_what_was_held_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["</s>"])
    assert matcher.push("fin </") == ("fin ", None)
    assert matcher.finish() == "</"


@pytest.mark.parametrize("strings", [[], [""], ["a", ""]])
def test_empty_stop_strings_are_refused(strings: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="at least one character"):
        StopMatcher(strings)


def test_time_is_linear_for_the_worst_of_inputs() -> None:
    """16 stop strings of 1,024 letters that almost match at every letter, letter by letter: a
    search through what is held back would take 16 million steps for each."""
    stops = ["a" * (1008 + n) + "b" for n in range(16)]
    matcher = StopMatcher(stops)

    def cost(letter: str) -> float:
        begin = time.thread_time()
        for _ in range(20_000):
            assert matcher.push(letter)[1] is None
        return time.thread_time() - begin

    usual = cost("c")
    assert cost("a") < 100 * usual
    assert matcher.push("b") == ("", stops[-1])


@pytest.mark.parametrize(
    ("least", "text", "shown"),
    [
        (4, "if x:\n    y\nz", "if x:\n    y"),
        (4, "if x:\n    y\n\n    z", "if x:\n    y"),
        (4, "    y\n     z\n   ", "    y\n     z\n   "),
        (1, "a\n\tb\n c\nd\n e", "a\n\tb\n c"),
        (2, "a\n", "a\n"),
    ],
)
def test_a_text_ends_before_a_line_that_is_less_indented(least: int, text: str, shown: str) -> None:
    for size in range(1, len(text) + 1):
        assert _indented(IndentedText(least), text, size) == (shown, "" if shown != text else None)


@pytest.mark.parametrize(
    ("text", "shown", "end"),
    [
        ("a\n  b;\nc", "a\n  b", ";"),
        ("a\nb;", "a", ""),
        ("a\n;", "a\n", ";"),
        ("a\n  b\n  ", "a\n  b\n  ", None),
    ],
)
def test_of_both_ends_the_first_counts(text: str, shown: str, end: str | None) -> None:
    for size in range(1, len(text) + 1):
        assert _indented(IndentedText(2, StopMatcher([";"])), text, size) == (shown, end)


def _indented(matcher: IndentedText, text: str, size: int) -> tuple[str, str | None]:
    """What is shown of a text in pieces, and what ended it."""
    whole = ""
    for at in range(0, len(text), size):
        more, end = matcher.push(text[at : at + size])
        whole += more
        if end is not None:
            return whole, end
    return whole + matcher.finish(), None
