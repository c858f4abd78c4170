"""What is looked up: compared with a search through all tokens, its cost and its bounds."""

from __future__ import annotations

import random
import time

import pytest

from penstock.model.speculation import SpeculativeConfig
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.speculation.choose import LookupFirst, lookup_proposer
from penstock_worker.speculation.drafting import Proposer
from penstock_worker.speculation.lookup import LookupProposer, RecentOutputs
from penstock_worker.speculation.matches import ENOUGH, SEPARATOR, longest_matches
from penstock_worker.speculation.token_index import TokenIndex

SAMPLING = TokenSampling(0)


class Table:
    """Slots, and a proposer that follows them."""

    def __init__(self, method: str = "suffix", **settings: int) -> None:
        self.slots = Slots(SlotBounds(8, 1 << 20, 16, 1 << 20, 1 << 20))
        config = SpeculativeConfig(method=method, **settings)
        self.proposer: Proposer = lookup_proposer(config, self.slots)
        self.step = 0

    def admit(self, slot: int, tokens: list[int], **more: object) -> None:
        more = {"num_prompt": len(tokens), "index": 0, "sampling": SAMPLING, **more}
        self._take([], [NewSequence(slot, tokens, blocks=list(range(8)), **more)])

    def release(self, slot: int) -> None:
        self._take([slot], [])

    def guess(self, slot: int, most: int = 8) -> list[int]:
        held = self.slots[slot]
        work = SlotWork(slot, len(held.token_ids) - 1, 1, draft=most)
        [ids] = self.proposer.propose([work])
        return ids

    def _take(self, released: list[int], admitted: list[NewSequence]) -> None:
        self.step += 1
        plan = Plan(self.step, self.step - 1, released, admitted, [])
        self.slots.apply(plan)
        self.proposer.take(plan)


def longest(tokens: list[int], tail: list[int], least: int) -> tuple[int, list[int]]:
    """The most tokens of `tail`'s end that a run in `tokens` has, and where such runs end."""
    for length in range(len(tail), least - 1, -1):
        wanted = tail[-length:]
        places = [at for at in range(length, len(tokens) + 1) if tokens[at - length : at] == wanted]
        if places:
            return length, [at - 1 for at in reversed(places)]
    return 0, []


@pytest.mark.parametrize("width", [1, 2, 3])
def test_matches_are_those_of_a_search_through_everything(width: int) -> None:
    """Also where the index grows by pieces, and behind a part that others share."""
    draws = random.Random(width)
    for _ in range(60):
        tokens = [draws.randrange(4) for _ in range(draws.randrange(width + 1, 90))]
        base = TokenIndex(width, tokens[: draws.randrange(1, len(tokens))])
        base.extend(len(base.tokens) - 1)
        index = TokenIndex(width, tokens, base, base.end)
        end = base.end
        while end < len(tokens):
            end = min(len(tokens), end + draws.choice([1, 2, 50]))
            index.extend(end)
        tail = [draws.randrange(4) for _ in range(draws.randrange(width, 7))]
        length, places = longest(tokens, tail, width)
        found = longest_matches(index, tail)
        if len(list(index.runs(tail, 1000))) <= 24:
            enough = places[:ENOUGH] if length == len(tail) else places
            assert [match.place for match in found] == enough
        assert all(match.length <= length for match in found)


def test_ngram_goes_on_as_the_last_time() -> None:
    table = Table("ngram")
    table.admit(0, [1, 2, 3, 4, 9, 2, 3, 5, 9, 7, 2, 3])
    assert table.guess(0, 3) == [5, 9, 7]
    table.admit(1, [9, 1, 2, 3, 4, 9, 2, 3, 5, 9, 7, 1, 2, 3])
    assert table.guess(1, 2) == [4, 9]  # A longer run comes before a later one.
    table.admit(2, [5, 6, 7, 8])
    assert table.guess(2) == []


def test_what_repeats_itself_goes_on_repeating() -> None:
    for method in ("ngram", "suffix"):
        table = Table(method)
        table.admit(0, [1, 2, 3] * 4)
        assert table.guess(0) == [1, 2, 3, 1, 2, 3, 1, 2]
        table.slots[0].append(1)
        assert table.guess(0, 3) == [2, 3, 1]


def test_most_votes_win_and_doubt_ends_a_draft() -> None:
    table = Table()
    known = [1, 2, 30, 31, 5, 1, 2, 40, 41, 5, 1, 2, 30, 32]
    table.admit(0, [*known, 7, 1, 2])
    assert table.guess(0)[:2] == [30, 32]  # Two of three; then one of two, the newer first.
    table.admit(1, [at for last in range(30, 35) for at in (1, 2, last, 9)] + [1, 2])
    assert table.guess(1) == []  # Each of four is as likely.


def test_other_outputs_of_the_scope_and_no_others() -> None:
    table = Table()
    output = [50, 51, 52, 53, 54]
    table.admit(0, [1, 2, *output], num_prompt=2, draft_scope=b"ours")
    table.admit(1, [60, 61, 62, 63], num_prompt=1)
    table.release(0)
    table.release(1)
    for slot, (scope, tokens, expected) in enumerate(
        [
            (b"ours", [9, 50, 51], [52, 53, 54]),
            (b"theirs", [9, 50, 51], []),
            (b"ours", [9, 1, 2], [50, 51, 52, 53]),
            (b"", [9, 61, 62], []),
            (b"ours", [9, 61, 62], []),
        ]
    ):
        table.admit(slot, tokens, draft_scope=scope)
        assert table.guess(slot) == expected
    table.proposer.reset()
    table.slots.clear()
    table.admit(0, [9, 50, 51], draft_scope=b"ours")
    assert table.guess(0) == []


def test_a_prediction_is_followed_left_and_taken_up_again() -> None:
    for method in ("ngram", "suffix"):
        table = Table(method)
        prediction = [10, 11, 12, 13, 14, 15, 16, 17, 12, 13, 18]
        table.admit(0, [1, 2], prediction=prediction)
        table.admit(1, [], like=0, num_prompt=0)
        for slot in (0, 1):
            held = table.slots[slot]
            assert table.guess(slot, 3) == [10, 11, 12]
            held.append(10)
            assert table.guess(slot, 3) == [11, 12, 13]
            held.append(99)
            assert table.guess(slot) == []
            for token in (12, 13):  # The next place where they are, not the last.
                held.append(token)
            assert table.guess(slot, 3) == [14, 15, 16]
            for token in (14, 98, 12, 13):
                held.append(token)
            assert table.guess(slot) == [18]
            held.append(18)
            assert table.guess(slot)[:1] != [18]


def test_tokens_that_are_being_sampled_are_not_guessed_from() -> None:
    table = Table()
    table.admit(0, [1, 2, 3, 1, 2])
    table.slots[0].expect(0)
    # 3 and what is known behind it, and from there on as what repeats itself.
    assert table.proposer.proposed(0) == 4
    assert table.proposer._followed[0].guess == [3, 1, 2, 3]
    table.release(0)


def test_the_hint_is_what_comes_next() -> None:
    table = Table(num_speculative_tokens=3)
    table.admit(0, [1, 2, 3, 4, 5, 1, 2])
    assert table.proposer.first(0) is None
    assert table.proposer.proposed(0) == 3
    assert table.guess(0, 2) == [3, 4]
    table.slots[0].append(9)
    assert table.proposer.first(0) == 3
    table.slots[0].append(9)
    assert table.proposer.first(0) is None, "it was guessed in another place"
    assert table.proposer.proposed(7) == 0


class Resting(Proposer):
    """A head, of which nothing can be had while it rests."""

    rests = False

    def proposed(self, slot: int) -> int:
        return 0 if self.rests else 4


def test_beside_a_head_that_rests_the_hint_is_what_is_looked_up() -> None:
    table, head = Table("ngram", num_speculative_tokens=3), Resting()
    lookup = table.proposer
    assert isinstance(lookup, LookupProposer)
    table.proposer = LookupFirst(lookup, head)
    for head.rests in (True, False):
        table.admit(0, [1, 2, 3, 1, 2])
        assert table.proposer.proposed(0) == (3 if head.rests else 4)
        table.slots[0].append(3)
        assert table.proposer.first(0) == (3 if head.rests else None)
        table.release(0)


def test_a_long_prompt_costs_milliseconds_and_a_step_microseconds() -> None:
    """Also one that is a single token over and over. The bounds are wide: machines are busy."""
    draws = random.Random(0)
    prompts = [[draws.randrange(50_000) for _ in range(100_000)], [7] * 100_000]
    for prompt in prompts:
        table = Table()
        table.admit(0, prompt)
        begun = time.process_time()
        table.guess(0)
        assert time.process_time() - begun < 1.0
        begun = time.process_time()
        for _ in range(1000):
            table.slots[0].append(prompt[draws.randrange(1000)])
            table.proposer.proposed(0)
        assert time.process_time() - begun < 1.0


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    recent = RecentOutputs(2, tokens=400, scope_tokens=200)
    for at in range(300):
        scope = b"%d" % (at % 7)
        recent.add(scope, [1000 + at] * (3 + at % 90))
        assert recent.size <= 400
        assert sum(len(index.tokens) for n in range(7) for index in recent.of(b"%d" % n)) == (
            recent.size
        )
        assert all(
            sum(len(index.tokens) for index in recent.of(b"%d" % n)) <= 200 for n in range(7)
        )
        newest = recent.of(scope)[0].tokens
        assert newest[-1] == SEPARATOR
        assert newest[-2] == 1000 + at
    recent.clear()
    assert recent.size == 0
    assert recent.of(b"1") == []


def test_a_slot_that_goes_leaves_nothing_behind() -> None:
    table = Table()
    for round_ in range(40):
        table.admit(0, [round_, 1, 2, 3], prediction=[4, 5])
        table.guess(0)
        table.release(0)
    assert len(table.proposer._followed._held) == 0
    assert [len(way._states) for way in table.proposer._ways[:1]] == [0]
