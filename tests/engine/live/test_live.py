"""What the live view shows, beside a slow and obvious count of the same; what it costs; and that
nobody decides otherwise because of it."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.protocol.from_frontend import Watch
from penstock.protocol.live import (
    LONGEST_LEASE,
    MAX_BATCH_ROWS,
    MAX_CELLS,
    MAX_QUEUE_ROWS,
    MAX_STEPS,
    MAX_TENANT_ROWS,
    Snapshot,
)
from penstock.protocol.to_frontend import Status, ToFrontend, Welcome
from penstock.protocol.to_worker import Plan
from penstock_engine.core import EngineCore
from penstock_engine.kv.cache import KVCache
from penstock_engine.live.pool_view import block_view
from penstock_engine.live.view import LiveView
from tests.engine.harness import Harness
from tests.engine.live.shown_core import check_blocks, shown, slow_blocks, walk, watched
from tests.engine.walked_harness import Drawn, Seeded, make_harness
from tests.met import met as is_met
from tests.thinning import part


@settings(max_examples=part(25, 1 / 3), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 40))
def test_short_histories_are_shown_as_they_are(data: st.DataObject, length: int) -> None:
    choose = Drawn(data)
    h = walk(make_harness(choose), choose, length, looks=True)
    is_met("a step", h.core.state.scheduling.num_steps)


@pytest.mark.parametrize("seed", range(4))
def test_nobody_decides_otherwise_because_somebody_watches(seed: int) -> None:
    traces = []
    for looks in (False, True):
        choose = Seeded(seed)
        traces.append(walk(make_harness(choose), choose, 300, looks=looks).trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100


@pytest.mark.parametrize("num_blocks", [1, 7, MAX_CELLS, MAX_CELLS + 1, 100_000, 1_100_000])
def test_a_pool_of_any_size_is_shown_in_so_many_cells(num_blocks: int) -> None:
    cache = KVCache(num_blocks, 16)
    tables = [cache.take(-(-num_blocks // 5)) for _ in range(2)] if num_blocks > 1 else []
    for table in tables[:1]:
        part = table[::3]
        cache.publish(part, [b"%d" % block for block in part])
        for block in part[:300]:
            cache.pool.share(block)
        # More owners than a byte counts.
        for _ in range(255):
            cache.pool.share(part[0])
    owners = {block: cache.pool.num_owners(block) for table in tables for block in table}
    if tables:
        # Back to the pool, one block with contents and one without.
        for block in (tables[0][-1], tables[1][-1]):
            while owners[block]:
                cache.release([block])
                owners[block] -= 1
    words = [
        ("used" if owners[block] == 1 else "shared")
        if owners.get(block)
        else ("cached" if block in cache._key_of else "free")
        for block in range(num_blocks)
    ]
    check_blocks(words, block_view(cache))


# ---- leases


def test_a_lease_brings_two_snapshots_a_second_and_ends() -> None:
    harness, view = watched()
    told = []
    start = harness.now
    while harness.now < start + LONGEST_LEASE + 5:
        due = view.snapshots(harness.now)
        if due is not None:
            told.append(harness.now - start)
        harness.now += 0.1
    assert told[0] == 0
    assert all(later - sooner >= 0.5 for sooner, later in pairwise(told))
    assert 50 <= len(told) <= 60
    assert told[-1] <= LONGEST_LEASE
    assert view.next_due() == float("inf")


def test_a_lease_has_a_bound_and_ends_when_asked_or_with_its_session() -> None:
    harness, view = watched()
    front = harness.fronts[0]
    harness.send(front, Watch(1e9))
    harness.now += LONGEST_LEASE
    assert view.snapshots(harness.now) is None
    harness.send(front, Watch(10))
    sessions, _ = view.snapshots(harness.now) or ([], None)
    assert sessions == [front.session]
    for nothing in (0.0, -1.0, float("nan")):
        harness.send(front, Watch(10))
        harness.send(front, Watch(nothing))
        assert view.snapshots(harness.now + 1) is None
    harness.send(front, Watch(10))
    harness.disconnect(front)
    assert view.snapshots(harness.now + 1) is None
    assert view.takes(front.session, Watch(10), harness.now)
    assert view.snapshots(harness.now + 1) is None


def test_nothing_is_noted_while_nobody_watches() -> None:
    harness = Harness()
    view = shown(harness)
    front = harness.connect()
    harness.start_worker()
    harness.submit(front, [3, 4, 5], ignore_eos=True)
    harness.run()
    assert view.snapshot(harness.now).steps.rows == []
    harness.send(front, Watch(5))
    harness.submit(front, [3, 4, 5], ignore_eos=True)
    harness.run()
    assert len(view.snapshot(harness.now).steps.rows) > 3
    harness.send(front, Watch(0))
    assert view.snapshot(harness.now).steps.rows == []


# ---- steps, tenants, front ends, worker


def test_steps_tell_prefill_from_decode_and_how_long_they_took() -> None:
    harness, view = watched(max_num_batched_tokens=8)
    harness.start_worker()
    harness.submit(harness.fronts[0], list(range(3, 15)), tenant="t", max_tokens=3, ignore_eos=True)
    while harness.plan is not None:
        harness.now += 0.25
        harness.run_step()
    rows = view.snapshot(harness.now).steps.rows
    assert [(row.prefill, row.decode, row.sequences) for row in rows] == [
        (8, 0, 1),
        (4, 0, 1),
        (0, 1, 1),
        (0, 1, 1),
    ]
    assert [row.seconds for row in rows] == [0.25] * 4
    assert [row.number for row in rows] == [1, 2, 3, 4]


def test_drafted_and_kept_tokens_are_shown() -> None:
    harness, view = watched(max_num_batched_tokens=8)
    harness.proposes = lambda: 4
    harness.drafts = lambda most: (most, min(most, 1))
    harness.start_worker()
    score = harness.submit(harness.fronts[0], [3, 4], max_tokens=12, ignore_eos=True)
    shown = view.snapshot(harness.now)
    while harness.plan is not None:
        shown = view.snapshot(harness.now)
        harness.run_step()
    steps, (row,), sequence = view.snapshot(harness.now).steps, shown.batch.rows, score.sequences[0]
    assert (steps.drafted, steps.kept) == (sequence.drafted, sequence.kept)
    assert sequence.drafted > sequence.kept > 2
    assert sum(step.drafted for step in steps.rows) == sequence.drafted
    assert sum(step.kept for step in steps.rows) == sequence.kept
    assert 0 < row.kept < row.drafted <= sequence.drafted


def test_steps_are_counted_as_the_core_counts_them_and_forgotten_after_some() -> None:
    harness, view = watched(max_model_len=400, max_steps_in_flight=2)
    harness.start_worker()
    front = harness.fronts[0]
    for tenant in "ab":
        harness.submit(front, [3, 4, 5], tenant=tenant, max_tokens=300, ignore_eos=True)
    plans: list[Plan] = []
    while harness.plan is not None:
        plans.append(harness.plan)
        harness.now += 0.001
        harness.run_step()
        if harness.now > 100.2:
            break
    snapshot = view.snapshot(harness.now)
    assert len(snapshot.steps.rows) == MAX_STEPS
    last = plans[-MAX_STEPS:]
    assert [row.prefill + row.decode for row in snapshot.steps.rows] == [
        sum(work.count for work in plan.work) for plan in last
    ]
    tokens = sum(row.prefill + row.decode for row in snapshot.steps.rows)
    assert sum(row.tokens for row in snapshot.tenants.rows) == tokens


def test_a_lost_worker_is_counted_and_shown() -> None:
    harness, view = watched()
    assert view.snapshot(harness.now).worker.lost == 0
    assert not view.snapshot(harness.now).worker.ready
    harness.start_worker()
    told = view.snapshot(harness.now).worker
    assert (told.ready, told.device, told.fingerprint, told.lost) == (True, "cpu", "f", 0)
    harness.kill_worker()
    told = view.snapshot(harness.now).worker
    assert (told.ready, told.device, told.lost) == (False, "", 1)
    assert told.reason
    assert view.snapshot(harness.now).blocks is None


def test_fair_share_shows_weights_and_debts() -> None:
    harness, view = watched(scheduling_policy="fair", tenants="a:weight=3")
    harness.start_worker()
    front = harness.fronts[0]
    for tenant in ("a", "b"):
        harness.submit(front, [3, 4, 5], tenant=tenant, max_tokens=40, ignore_eos=True)
    for _ in range(12):
        harness.run_step()
    rows = {row.tenant: row for row in view.snapshot(harness.now).tenants.rows}
    assert (rows["a"].weight, rows["b"].weight) == (3, 1)
    assert min(row.debt for row in rows.values()) == 0
    assert rows["b"].debt > 0, "it has had as much, with a third of the weight"


def test_front_ends_are_shown_with_the_age_of_their_sessions() -> None:
    harness, view = watched()
    harness.now += 7
    second = harness.connect()
    harness.submit(second, [3, 4])
    rows = view.snapshot(harness.now).frontends.rows
    assert [(row.age, row.requests) for row in rows] == [(7, 0), (0, 1)]


# ---- peers of other builds


def test_builds_that_do_not_know_it_understand_a_welcome_and_say_nothing_of_it() -> None:
    harness = Harness()
    welcome = harness.connect().welcome
    assert welcome is not None
    assert welcome.live
    fields = {name: getattr(welcome, name) for name in Welcome.__struct_fields__ if name != "live"}
    old = msgspec.defstruct(
        "OldWelcome",
        [(name, Any) for name in fields],
        tag="welcome",
        kw_only=True,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(welcome), type=old | Status).boot
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(old(**fields)), type=ToFrontend)
    assert heard.live is False


# ---- cost


def test_a_snapshot_of_a_crowd_is_bounded_and_quick() -> None:
    """256 that run, 10,000 that wait, 100,000 blocks."""
    harness = Harness(
        max_num_seqs=256,
        max_waiting_requests=20_000,
        max_waiting_tokens=10_000_000,
        max_num_batched_tokens=4096,
    )
    view = shown(harness)
    front = harness.connect()
    core = harness.core
    harness.start_worker(100_000)
    check, core.check = core.check, lambda: None  # type: ignore[method-assign]
    for at in range(10_256):
        prompt = [3 + at % 30] * (3 + at % 20)
        harness.submit(
            front, prompt, tenant=f"tenant {at % 300}", max_tokens=30, ignore_eos=True, settle=False
        )
    harness.settle()
    for _ in range(3):
        harness.run_step()
    core.check = check  # type: ignore[method-assign]
    snapshot = check_crowd(core, view, harness.now)
    assert len(msgspec.msgpack.encode(snapshot)) < 100_000
    took = []
    for _ in range(15):
        begun = time.process_time()
        view.snapshot(harness.now)
        took.append(time.process_time() - begun)
    print(f"a snapshot took {1000 * min(took):.2f} ms")
    assert min(took) < 0.1, "5 ms on a quiet machine; it would be seconds if all 10,000 were told"


def check_crowd(core: EngineCore, view: LiveView, now: float) -> Snapshot:
    snapshot = view.snapshot(now)
    assert len(snapshot.batch.rows) == MAX_BATCH_ROWS == snapshot.batch.running
    assert len(snapshot.queue.rows) == MAX_QUEUE_ROWS
    assert snapshot.queue.sequences == 10_000
    assert [row.request for row in snapshot.queue.rows] == [
        sequence.request.name
        for sequence in core.state.scheduling.queue.sequences()[:MAX_QUEUE_ROWS]
    ]
    assert len(snapshot.tenants.rows) == MAX_TENANT_ROWS
    assert snapshot.tenants.total == 300
    words = slow_blocks(core)
    assert words is not None
    assert snapshot.blocks is not None
    check_blocks(words, snapshot.blocks)
    return snapshot
