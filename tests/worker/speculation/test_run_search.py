"""What the kernels' library finds is what the plain search finds."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock_kernels.cpu
from penstock_kernels.cpu.runs import TokenRuns, guess
from penstock_worker.speculation import matches
from penstock_worker.speculation.lookup import RecentOutputs
from penstock_worker.speculation.matches import SEPARATOR
from penstock_worker.speculation.run_search import NativeIndex, NativeSearch, PlainSearch
from tests.met import met

WAYS = (PlainSearch(), NativeSearch())
few = st.integers(0, 3)


@st.composite
def texts(draw: st.DrawFn) -> tuple[int, list[int], list[int], list[list[int]]]:
    """(width, prompt, output, other outputs): of few tokens, so that runs are found."""
    output = st.lists(few, max_size=60)
    others = draw(
        st.lists(st.lists(st.sampled_from([0, 1, 2, 3, SEPARATOR]), max_size=60), max_size=2)
    )
    width = draw(st.integers(1, 4))
    return width, draw(st.lists(few, min_size=1, max_size=60)), draw(output), others


@given(texts(), st.integers(1, 9), st.integers(0, 5))
def test_both_find_the_same_after_each_token(
    text: tuple[int, list[int], list[int], list[list[int]]], most: int, further: int
) -> None:
    width, prompt, output, others = text
    longest = width + further
    tokens = list(prompt)
    indexes = []
    for way in WAYS:
        base = way.index(width, list(prompt))
        base.extend(len(prompt) - 1)
        own = [way.index(width, tokens, base, base.end)]
        for other in others:
            own.append(way.index(width, other))
            own[-1].extend(len(other))
        indexes.append(own)
    for token in [None, *output]:
        if token is not None:
            tokens.append(token)
        for own in indexes:
            own[0].extend(len(tokens) - 1)
        tail = tokens[-longest:]
        if len(tail) < width:
            continue
        plain, native = (
            (way.voted(own, tail, longest, most), way.latest(own[0], tail, most))
            for way, own in zip(WAYS, indexes, strict=True)
        )
        assert native == plain
        met("found", any(plain))


@pytest.mark.parametrize("way", WAYS, ids=["plain", "native"])
@pytest.mark.parametrize(("kinds", "drafted"), [(2, 1), (3, 1), (4, 0)])
def test_a_draft_ends_where_it_is_unlikely(
    way: PlainSearch | NativeSearch, kinds: int, drafted: int
) -> None:
    """After 1 and 2 came as many different tokens, each once: as likely as one of so many."""
    text = [token for kind in range(kinds) for token in (1, 2, 30 + kind, 9)] + [1, 2]
    index = way.index(2, text)
    index.extend(len(text) - 1)
    found = way.voted([index], [1, 2], 2, 1)
    assert found == [30 + kinds - 1][:drafted]


def test_also_in_long_texts_whose_table_grows_and_which_repeat_one_token() -> None:
    draws = random.Random(1)
    for kinds in (1, 2, 40, 5_000):
        text = [draws.randrange(kinds) for _ in range(20_000)]
        own = [way.index(2, text) for way in WAYS]
        for end in (7_000, 7_001, 19_999):
            for index in own:
                index.extend(end)
        for at in range(100, 20_000, 999):
            tail = text[at - 8 : at]
            plain, native = (
                way.voted([index], tail, 8, 16) for way, index in zip(WAYS, own, strict=True)
            )
            assert native == plain


def test_outputs_that_are_forgotten_give_their_memory_back() -> None:
    """Each generation is an object of the library, which goes with it."""
    recent = RecentOutputs(2, tokens=4_000, scope_tokens=1_000)
    for at in range(400):
        recent.add(b"%d" % (at % 9), [at % 50] * 90)
        assert recent.size <= 4_000
    held = [index for at in range(9) for index in recent.of(b"%d" % at)]
    assert all(isinstance(index, NativeIndex) for index in held)
    assert sum(index.runs.size for index in held if isinstance(index, NativeIndex)) == recent.size


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="width is 0"):
        TokenRuns(0)
    with pytest.raises(ValueError, match="at 3"):
        TokenRuns(2, TokenRuns(2), 3)
    assert guess([], [1, 2], 8, 8, votes=True) == []
    assert guess([TokenRuns(2)], [1], 8, 8, votes=True) == []


def test_the_library_has_the_constants_of_the_plain_search() -> None:
    """Constants that random texts may not reach are compared, too."""
    source = (Path(penstock_kernels.cpu.__file__).parent / "csrc" / "runs.cpp").read_text()
    found = dict(re.findall(r"^constexpr \w+ ([A-Z]+) = (-?[\d.]+);", source, re.MULTILINE))
    names = {"CANDIDATES", "ENOUGH", "STRETCH", "LIKELY", "SEPARATOR"}
    assert {name: float(value) for name, value in found.items()} == {
        name: float(getattr(matches, name)) for name in names
    }
