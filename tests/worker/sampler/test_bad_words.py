"""The automaton of bad words beside their definition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_worker.sampler.bad_words import BadWords
from tests.met import met
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)

ids = st.integers(0, 3)
words_of_few_ids = st.lists(
    st.lists(ids, min_size=1, max_size=6).map(tuple), min_size=3, max_size=12
)


def completing(words: list[tuple[int, ...]], output: list[int]) -> frozenset[int]:
    """Each word's last id where the output ends in the others."""
    return frozenset(
        word[-1] for word in words if len(word) == 1 or tuple(output[1 - len(word) :]) == word[:-1]
    )


@settings(max_examples=part(100, 1 / 3))
@given(words=words_of_few_ids, output=st.lists(ids, max_size=40))
def test_what_it_bans_completes_a_word(words: list[tuple[int, ...]], output: list[int]) -> None:
    automaton = BadWords(words)
    state = automaton.after([])
    by_several = met_any = False
    for at in range(len(output) + 1):
        banned = automaton.banned(state)
        by_several = by_several or (len({*words}) > 1 and len(banned.ids) > 1)
        met_any = met_any or bool(banned.ids)
        assert banned.ids == completing(words, output[:at])
        assert banned.array.tolist() == sorted(banned.ids)
        assert state == automaton.after(output[:at]), "a sequence that comes back stands the same"
        if at < len(output):
            state = automaton.step(state, output[at])
    met("a word is completed", met_any)
    met("several words are completed at once", by_several)


@given(words=words_of_few_ids)
def test_it_says_whether_it_follows_the_output(words: list[tuple[int, ...]]) -> None:
    assert BadWords(words).follows_output == any(len(word) > 1 for word in words)
    met("words of several tokens", any(len(word) > 1 for word in words))


class Counted(dict[int, int]):
    """Counts how often it is asked."""

    asked = 0

    def get(self, key: int, default: int | None = None) -> int | None:  # type: ignore[override]
        self.asked += 1
        return super().get(key, default)


def test_a_token_costs_the_same_however_many_words_there_are() -> None:
    """512 words of 1,027 tokens that all begin alike, and an output that is nearly one of them over
    and over: two look-ups a token as a mean, and one set of ids for all words."""
    words = [(*[7] * 1026, last) for last in range(512)]
    automaton = BadWords(words)
    automaton._onward = counted = Counted(automaton._onward)
    output = [*[7] * 1100, 8] * 4
    state = automaton.after(output)
    assert counted.asked <= 2 * len(output)
    assert not automaton.banned(state).ids
    state = automaton.after([7] * 2000)
    first = automaton.banned(state)
    assert first.ids == frozenset(range(512))
    assert automaton.banned(automaton.step(state, 7)) is first
