"""Counts of a sequence's tokens, beside a dictionary that is made anew."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock_worker.sampler.penalties import Penalties, PromptIds
from tests.met import met

TOKENS = st.builds(
    lambda random, count: random.choices(range(100), k=count),
    st.randoms(use_true_random=False),
    st.integers(0, 90),
)


def told(penalties: Penalties) -> dict[int, int]:
    return dict(zip(penalties.ids.tolist(), penalties.counts.tolist(), strict=True))


def counted(prompt: list[int], output: list[int]) -> dict[int, int]:
    return dict.fromkeys(prompt, 0) | Counter(output)


@given(prompt=TOKENS, output=TOKENS, first=TOKENS, second=TOKENS)
def test_a_copy_and_what_it_was_made_of_count_their_own(
    prompt: list[int], output: list[int], first: list[int], second: list[int]
) -> None:
    met("both count tokens that were there", {*first} & {*second} & {*prompt, *output})
    met("more ids than there was room for", len({*prompt, *output}) <= 64 < len({*prompt, *first}))
    one = Penalties(
        presence=0.0, frequency=0.0, repetition=1.5, prompt=PromptIds(prompt), output=output
    )
    other = one.copy()
    for token in first:
        one.advance(token)
    for token in second:
        other.advance(token)
    assert told(one) == counted(prompt, output + first)
    assert told(other) == counted(prompt, output + second)
