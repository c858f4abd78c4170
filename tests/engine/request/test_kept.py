"""An answer that is kept: another reader gets exactly what it hasn't got, and only what is whole is
whole."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.common import FinishReason, TokenLogprobs, TokenSampling
from penstock.protocol.from_frontend import OpenSequence
from penstock.protocol.to_frontend import SequenceOutput
from penstock_engine.request import kept as kept_module
from penstock_engine.request.kept import KeptAnswer
from tests.met import met


class Room:
    """Counts what is taken of it."""

    def __init__(self) -> None:
        self.taken = 0

    def add(self, tenant: str, more: int) -> None:
        self.taken += more


def _entry(token: int) -> TokenLogprobs:
    return TokenLogprobs(-float(token), (token,), (-float(token),))


def _kept(
    steps: list[list[int]], finish: FinishReason | None, *, logprobs: bool = True
) -> tuple[KeptAnswer, Room]:
    """One sequence that gained these tokens; the last of them with its end, if it has one."""
    room, tokens = Room(), {0: array("i")}
    answer = KeptAnswer(tokens, room, "one", TokenSampling(1))
    for number, step in enumerate(steps, 1):
        tokens[0].extend(step)
        end = finish if number == len(steps) else None
        entries = [_entry(token) for token in step] if logprobs else None
        answer.note(SequenceOutput(7, 0, step, entries, end))
    return answer, room


@pytest.fixture(autouse=True, scope="module")
def _small_parts() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_module, "PART", 3)
        yield


@given(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), min_size=1, max_size=6),
    st.sampled_from(["stop", "length", None]),
    st.data(),
)
def test_a_reader_gets_what_it_lacks(
    steps: list[list[int]], finish: FinishReason | None, data: st.DataObject
) -> None:
    answer, _ = _kept(steps, finish)
    tokens = [token for step in steps for token in step]
    had = data.draw(
        st.integers(0, len(tokens)) | st.integers(len(tokens) - len(steps[-1]), len(tokens))
    )
    met("it has some, and not all", 0 < had < len(tokens))
    met("it has some of the last output", finish and len(tokens) - len(steps[-1]) < had)
    outputs = answer.outputs(9, [OpenSequence(0, tokens[:had])], 0)
    assert [token for each in outputs for token in each.tokens] == tokens[had:]
    entries = [entry for each in outputs for entry in each.logprobs or []]
    assert entries == [_entry(token) for token in tokens[had:]]
    assert {each.request for each in outputs} <= {9}
    assert [each.finish for each in outputs if each.finish] == ([finish] if finish else [])


@pytest.mark.parametrize("goes_on", [False, True])
def test_who_has_other_tokens_is_told_so(goes_on: bool) -> None:
    answer, _ = _kept([[1, 2], [3]], None if goes_on else "stop")
    for had, agrees in (([], True), ([1, 2], True), ([1, 2, 3], True), ([1, 3], False)):
        assert answer.agrees([OpenSequence(0, had)], ahead=True) is agrees
        assert answer.agrees([OpenSequence(0, had)], ahead=False) is agrees
    assert answer.agrees([OpenSequence(0, [1, 2, 3, 4])], ahead=True) is goes_on
    assert not answer.agrees([OpenSequence(0, [1, 2, 3, 4])], ahead=False)
    assert not answer.agrees([OpenSequence(1)], ahead=True)


@pytest.mark.parametrize("finish", ["stop", "length", "repetition", "abort", "timeout", "error"])
def test_only_an_end_of_its_own_makes_it_whole(finish: FinishReason) -> None:
    answer, _ = _kept([[1, 2], [3]], finish)
    assert answer.whole == (finish not in ("abort", "timeout", "error"))


def test_it_is_not_whole_before_its_end() -> None:
    assert not _kept([[1, 2]], None)[0].whole


def test_its_room_is_given_back() -> None:
    answer, room = _kept([[1, 2], [3]], "stop")
    assert room.taken == answer.size > 0
    answer.drop()
    assert room.taken == 0
