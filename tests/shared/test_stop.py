"""Stop strings against an obvious model: look for them after every character."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.text.stop import StopMatcher
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
