"""The parts of the policy `fair`, one by one: debts, a held head, who is spared."""

from __future__ import annotations

import itertools

from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock_engine.kv.table import BlockTable
from penstock_engine.policies.fair import FairRoom
from penstock_engine.policies.fair_accounts import SCALE, Accounts, FairQueue
from penstock_engine.policies.order import PriorityWithAgeing
from penstock_engine.policies.policy import Shortage
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.request import Request, Sequence

ARRIVALS = itertools.count(1)


def sequence(tenant: str, *, blocks: int = 0) -> Sequence:
    """blocks: that it holds."""
    number = next(ARRIVALS)
    submit = Submit(
        number,
        f"r{number}",
        [1, 2],
        [OpenSequence(0, [])],
        TokenSampling(seed=1),
        Stopping(max_tokens=99),
        tenant=tenant,
    )
    (made,) = Request(b"s", submit, arrival=number, eos_token_ids=(0,)).sequences.values()
    made.table = BlockTable(4, [list(range(blocks))])
    return made


def accounts(*tenants: str, credit: int = 0) -> Accounts:
    made = Accounts(Tenants(), PriorityWithAgeing(), credit)
    for tenant in tenants:
        made.joined(tenant)
    return made


def queued(of: Accounts, *sequences: Sequence) -> FairQueue:
    queue = FairQueue(of)
    for each in sequences:
        queue.push(each)
    return queue


def test_who_had_more_than_its_share_owes_it_when_it_comes_back() -> None:
    of = accounts("greedy", "other")
    queued(of, sequence("other"))
    of.charge("greedy", 1000)
    of.left("greedy")
    assert "greedy" not in of
    of.joined("greedy")
    assert of["greedy"].time == 1000 * SCALE
    assert of.owes(of["other"])


def test_a_debt_is_forgotten_once_the_others_have_had_as_much() -> None:
    of = accounts("greedy", "other", "third")
    queued(of, sequence("other"))
    of.charge("greedy", 1000)
    of.left("greedy")
    assert of.ahead()["greedy"] == 1000 * SCALE
    of.charge("other", 2000)
    of.charge("third", 3000)
    of.left("third")  # whoever leaves with a debt has the old ones looked through
    assert "greedy" not in of.ahead()


def test_debts_are_forgiven_when_nobody_has_work() -> None:
    of = accounts("greedy", "other")
    queue = queued(of, waiting := sequence("other"))
    of.charge("greedy", 1000)
    of.left("greedy")
    queue.remove(waiting)
    of.left("other")
    for name in ("other", "greedy"):
        of.joined(name)
    assert of["greedy"].time == of["other"].time


def test_who_did_not_ask_for_its_share_has_no_claim_to_it_but_for_the_credit() -> None:
    """Neither who was here and asked for nothing, nor who comes only now."""
    for credit in (0, 300):
        of = accounts("idle", "busy", credit=credit)
        queued(of, sequence("busy"))
        begun = of["busy"].time
        of.charge("busy", 1000)
        for name in ("idle", "new"):
            of.joined(name)
            assert of[name].time == begun + (1000 - credit) * SCALE


def test_a_debt_counts_by_weight() -> None:
    of = Accounts(Tenants("heavy:weight=4"), PriorityWithAgeing(), 0)
    for name in ("heavy", "light"):
        of.joined(name)
    for name in ("heavy", "light"):
        of.charge(name, 400)
    assert of["light"].time == 4 * of["heavy"].time
    assert of.debts(["heavy", "light", "absent"]) == {"heavy": 0, "light": 300}
    of.charge("heavy", 3600)
    assert of.debts(["heavy", "light"]) == {"heavy": 2400, "light": 0}


def test_a_held_head_is_passed_by_so_many_and_then_all_wait_for_it() -> None:
    of = accounts("held", "other")
    held = sequence("held")
    queue = queued(of, held)
    for passed in range(FairQueue.MOST_PASSES):
        other = sequence("other")
        queue.push(other)
        queue.hold(held)  # It found no room, again and again: it is counted once.
        of.charge("held", 1)  # so that the other one's turn comes first
        assert queue.head() is other, passed
        queue.remove(other)
    other = sequence("other")
    queue.push(other)
    assert queue.head() is held
    assert queue.head("other") is None
    assert queue.head("held") is held
    queue.remove(held)
    assert queue.head() is other, "it has room now, and nobody waits for it"


def test_who_comes_back_after_being_held_is_not_held_any_more() -> None:
    of = accounts("held", "other")
    held = sequence("held")
    queue = queued(of, held)
    queue.hold(held)
    for _ in range(FairQueue.MOST_PASSES):
        queue.push(other := sequence("other"))
        queue.remove(other)
    queue.remove(held)
    queue.push(held)  # preempted: another ticket
    queue.push(other := sequence("other"))
    of.charge("held", 1)
    assert queue.head() is other


def room(of: Accounts) -> FairRoom:
    return FairRoom(of, PriorityWithAgeing())


def lost(often: int, of: Sequence, gained: int = 0) -> Sequence:
    """A sequence that has lost its blocks so often, and gained so many tokens since."""
    of.num_preemptions = often
    of.tokens_at_start = of.num_tokens - gained
    return of


def test_the_latest_of_who_holds_most_loses_its_blocks() -> None:
    of = accounts("a", "b")
    first, second, needy = sequence("a", blocks=3), sequence("a", blocks=2), sequence("b", blocks=1)
    assert room(of).victim([first, second, needy], needy) is second


def test_who_has_lost_its_blocks_twice_is_spared_until_it_has_gained() -> None:
    of = accounts("a", "b")
    first, second, needy = sequence("a", blocks=3), sequence("a", blocks=2), sequence("b", blocks=1)
    running = [first, second, needy]
    lost(FairRoom.MOST_LOSSES - 1, second)
    assert room(of).victim(running, needy) is second
    lost(FairRoom.MOST_LOSSES, second)
    assert room(of).victim(running, needy) is first
    lost(FairRoom.MOST_LOSSES, second, gained=FairRoom.LEAST_GAIN - 1)
    assert room(of).victim(running, needy) is first
    lost(FairRoom.MOST_LOSSES, second, gained=FairRoom.LEAST_GAIN)
    assert room(of).victim(running, needy) is second


def test_from_the_spared_only_their_elders_take_and_only_for_want_of_others() -> None:
    of = accounts("a", "b")
    elder = sequence("b", blocks=1)
    spared = lost(FairRoom.MOST_LOSSES, sequence("a", blocks=5))
    younger = sequence("b", blocks=1)
    assert room(of).victim([elder, spared], elder) is spared
    assert room(of).victim([spared, younger], younger) is None
    assert room(of).victim([elder, spared, younger], elder) is younger


def test_nobody_makes_way_who_is_spared() -> None:
    of = accounts("many", "few")
    of.charge("many", 1000)
    running = [sequence("many", blocks=4) for _ in range(3)]
    head = sequence("few")
    shortage = Shortage(slots=1, blocks=0, needed=2)
    assert room(of).make_way(head, running, shortage) == [running[2]]
    lost(FairRoom.MOST_LOSSES, running[2])
    assert room(of).make_way(head, running, shortage) == [running[1]]


def test_who_makes_way_still_holds_no_less_than_the_head_gets() -> None:
    """So it is never undone: with one slot each there is nothing to take."""
    of = accounts("many", "few")
    of.charge("many", 1000)
    running = [sequence("many", blocks=4) for _ in range(2)]
    shortage = Shortage(slots=1, blocks=0, needed=2)
    assert room(of).make_way(sequence("few"), running, shortage) == [running[1]]
    assert room(of).make_way(sequence("few"), running[:1], shortage) is None
    of.charge("few", 2000)
    assert room(of).make_way(sequence("few"), running, shortage) is None, "it was given more"
