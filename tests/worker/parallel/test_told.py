"""What plans tell stages that sample nothing, and what ranks tell the engine core."""

from __future__ import annotations

import socket

import pytest
import torch

from penstock.errors import StartupError
from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import NewSequence, Plan, RankGroup, SlotWork
from penstock_worker.batch.slots import PlanError, SlotBounds, Slots
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.group import Group
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.parallel.rendezvous import Rendezvous, split_address
from penstock_worker.worker import report, sampled_hash
from tests.worker.parallel.together import Formed

pytestmark = pytest.mark.timeout(300)


def slots(*, told: bool) -> Slots:
    made = Slots(
        SlotBounds(slots=2, blocks=8, block_size=4, vocab=100, tokens=16), tokens_from_plans=told
    )
    new = NewSequence(0, [1, 2, 3], 3, 0, TokenSampling(0), [0, 1, 2, 3])
    made.apply(Plan(1, 0, [], [new], [SlotWork(0, 0, 3)]))
    made[0].computed = 3
    return made


def work(made: Slots, start: int, count: int, sampled: list[int]) -> None:
    made.apply(Plan(2, 1, [], [], [SlotWork(0, start, count, [], sampled)]))


def test_sampled_tokens_are_appended_where_they_are_new() -> None:
    made = slots(told=True)
    work(made, 3, 1, [9])
    assert made[0].token_ids == [1, 2, 3, 9]


def test_sampled_tokens_that_are_there_must_be_equal() -> None:
    made = slots(told=False)
    made[0].append(9)
    work(made, 3, 1, [9])
    assert made[0].token_ids == [1, 2, 3, 9]
    with pytest.raises(PlanError, match=r"\[9\] were sampled here, \[8\] elsewhere"):
        work(made, 3, 1, [8])


@pytest.mark.parametrize(
    ("start", "count", "sampled", "said"),
    [
        (3, 2, [9], "sampled from 4 on"),
        (3, 1, [9, 9], "sampled from 2 on"),
        (3, 1, [100], "a sampled id is not in"),
        (3, 14, [5] * 14, "14 tokens were sampled"),
    ],
)
def test_sampled_tokens_that_fit_nowhere(
    start: int, count: int, sampled: list[int], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        work(slots(told=True), start, count, sampled)


def test_a_token_that_was_deferred_elsewhere_is_computed_again() -> None:
    work(slots(told=True), 2, 1, [])
    with pytest.raises(PlanError, match="work starts at token 2"):
        work(slots(told=False), 2, 1, [])
    with pytest.raises(PlanError, match="work starts at token 1"):
        work(slots(told=True), 1, 1, [])


def test_only_the_lead_tells_slots_and_the_last_stage_a_hash() -> None:
    known = Result(4, [SlotResult(0, 17), SlotResult(3)])
    told = {rank: report(known, RankPlace(2, 2, rank), 0.5) for rank in (2, 3)}
    assert told[2].slots == known.slots
    assert told[3].slots == []
    assert told[2].sampled == told[3].sampled > 0
    assert told[2].sampled < 2**63
    silent = report(Result(4, [SlotResult(0), SlotResult(3)]), RankPlace(2, 2, 0), 0.5)
    assert (silent.slots, silent.sampled) == ([], 0)
    assert report(known, RankPlace(), 0.5) == Result(4, known.slots, 0.5)


def test_the_hash_tells_outcomes_apart() -> None:
    outcomes = [
        [SlotResult(0, 17)],
        [SlotResult(1, 17)],
        [SlotResult(0, 16)],
        [SlotResult(0, deferred=True)],
        [SlotResult(0, error="it failed")],
        [SlotResult(0, 17), SlotResult(1, 17)],
        [SlotResult(0, 17, more=[17])],
        [SlotResult(0, 17, more=[18])],
    ]
    assert len({sampled_hash(each) for each in outcomes}) == len(outcomes)


def test_a_rendezvous_is_bound_and_serves_once() -> None:
    rendezvous = Rendezvous("127.0.0.1")
    address = rendezvous.address()
    assert rendezvous.address() == address
    host, port = split_address(address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port), 5)
    with socket.socket(fileno=rendezvous.take(address)):
        socket.create_connection((host, port), 60).close()
        assert rendezvous.address() != address
    with pytest.raises(GroupLost, match="earlier session"):
        rendezvous.take(address)
    rendezvous.close()
    with pytest.raises(StartupError, match=r"rank_host is 203\.0\.113\.9"):
        Rendezvous("203.0.113.9").address()
    assert split_address("[::1]:80") == ("::1", 80)
    with pytest.raises(GroupLost, match="is not HOST:PORT"):
        split_address("nowhere")


def test_alone_there_is_nobody_to_ask() -> None:
    x = torch.ones(2, 3)
    assert ALONE.sum(x) is x
    assert ALONE.join_columns(x, [3]) is x
    assert ALONE.any([True, False]) == [True, False]
    assert ALONE.least([4, 5]) == [4, 5]
    with pytest.raises(GroupLost, match="belongs to no group"):
        Ranks(RankPlace(2, 1, 0)).sum(x)


def test_sums_are_in_rank_order_in_float32_and_rounded_once() -> None:
    rows = torch.randn(3, 4, 33, generator=torch.Generator().manual_seed(5)).bfloat16()
    with Formed(3) as formed:
        sums = formed.each(lambda ranks: ranks.sum(rows[ranks.place.rank]))
        columns = formed.each(
            lambda ranks: ranks.join_columns(
                rows[0][:, [slice(0, 9), slice(9, 10), slice(10, 33)][ranks.place.rank]], [9, 1, 23]
            )
        )
        none = formed.each(lambda ranks: ranks.join_columns(rows[0][:0, :5], [5, 5, 5]))
        least = formed.each(lambda ranks: ranks.least([7 + ranks.place.rank, 9 - ranks.place.rank]))
        flags = formed.each(lambda ranks: ranks.any([ranks.place.rank == 2, False]))
    expected = ((rows[0].float() + rows[1].float()) + rows[2].float()).bfloat16()
    assert all(torch.equal(each, expected) for each in sums)
    assert all(torch.equal(each, rows[0]) for each in columns)
    assert all(each.shape == (0, 15) for each in none)
    assert least == [[7, 7]] * 3
    assert flags == [[True, False]] * 3


def test_who_leaves_frees_who_waits_and_all_can_form_again() -> None:
    with Formed(2, 2) as formed:
        waiting = [formed.pool.submit(formed.ranks[2].receive, (2, 2), torch.float32)]
        waiting += [formed.pool.submit(formed.ranks[3].sum, torch.ones(1, 2))]
        formed.ranks[0].leave()
        formed.ranks[2].abandon()
        for each in waiting[:1]:
            with pytest.raises(GroupLost):
                each.result(60)
        formed.ranks[2].leave()
        with pytest.raises(GroupLost, match="another rank was lost"):
            waiting[1].result(60)
        for one in formed.ranks:
            one.leave()
        formed.form()
        assert formed.each(lambda ranks: ranks.least([1])) == [[1]] * 4
        assert all(one.formed == 2 for one in formed.ranks)


def test_a_send_that_nobody_takes_does_not_hold_up_who_leaves() -> None:
    with Formed(1, 2) as formed:
        first, last = formed.ranks
        first.send(torch.ones(1000, 1000))
        last.leave()
        with pytest.raises(GroupLost):
            first.send(torch.ones(1000, 1000))
        first.leave()
        formed.form()
        first.send(torch.full((2, 2), 3.0))
        assert last.receive((2, 2), torch.float32).eq(3).all()


def test_a_rank_that_looks_for_a_store_that_never_comes_gives_up_with_its_session() -> None:
    first, other = Rendezvous("127.0.0.1"), Rendezvous("127.0.0.1")
    named = RankGroup(tensor=2, pipeline=1, rank=1, rendezvous=first.address(), number=1)
    looked: list[bool] = []

    def wanted() -> bool:
        looked.append(len(looked) < 3)
        return looked[-1]

    with pytest.raises(GroupLost, match="store was looked for"):
        Group(named, other, torch.device("cpu"), wanted)
    assert looked == [True, True, True, False]
    first.close()


def test_a_store_that_goes_frees_who_waits_for_an_agreement() -> None:
    """Weights are being loaded, and nothing but the store connects the ranks."""
    with Formed(2) as formed:
        waiting = formed.pool.submit(formed.ranks[1].least, [3])
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        formed.ranks[0].leave()
        with pytest.raises(GroupLost):
            waiting.result(60)


def test_a_session_that_ends_frees_who_waits_for_an_agreement() -> None:
    with Formed(2) as formed:
        formed.wanted = False
        with pytest.raises(GroupLost, match="the session ended while"):
            formed.pool.submit(formed.ranks[1].least, [3]).result(60)
