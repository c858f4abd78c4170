"""What the engine core counts, against what front ends and worker saw in the same histories."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from typing import Any

import pytest

from penstock.protocol.common import Grant
from penstock.protocol.from_frontend import PutToSleep, SetPaused, WakeUp
from penstock.protocol.to_frontend import SequenceOutput
from penstock.protocol.to_worker import Plan, ToWorker
from penstock_engine.metrics.counts import MAX_TENANTS, OTHER
from penstock_engine.metrics.figures import FigureSnapshot, families_of, snapshot
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore
from tests.engine.walked_harness import Seeded, make_harness
from tests.engine.walker import Walker


def state(h: Harness) -> FigureSnapshot:
    return snapshot(h.core, h.now, 0.0, 0.0)


class Figures:
    """The figures of a core, by their names without the prefix."""

    def __init__(self, h: Harness) -> None:
        self.values: dict[str, Any] = {
            name.partition(":")[2]: value for name, value in state(h).values.items()
        }

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


class Watcher:
    """Counts for itself what passes between a core and its peers."""

    def __init__(self, h: Harness) -> None:
        self.h = h
        self.copies: Counter[str] = Counter()
        self.plans = 0
        self.last: dict[int, str] = {}
        """How the last of each request's sequences ended, by its score's id."""
        self.tokens: Counter[str] = Counter()
        self._worker_gets, self._take = h._worker_gets, h._take
        h._worker_gets = self.worker_gets  # type: ignore[method-assign]
        h._take = self.take  # type: ignore[method-assign]

    def worker_gets(self, message: ToWorker) -> None:
        if isinstance(message, Plan):
            self.plans += 1
            self.copies.update(copy.kind for copy in message.copies)
        self._worker_gets(message)

    def take(self, request: RequestScore, output: SequenceOutput) -> None:
        if output.finish is not None:
            self.last[id(request)] = output.finish
        self.tokens[request.submit.tenant or "anonymous"] += len(output.tokens)
        self._take(request, output)

    def requests(self) -> list[RequestScore]:
        return [r for front in [*self.h.fronts, *self.h.gone] for r in front.requests.values()]


@functools.cache
def watched_walk(seed: int) -> tuple[Walker, Watcher]:
    choose = Seeded(seed)
    walker = Walker(make_harness(choose), choose)
    walker.gathers = False  # What is held back at the end has been counted, and seen by nobody.
    watcher = Watcher(walker.h)
    walker.connect()
    for _ in range(500):
        walker.walk()
    return walker, watcher


SEEDS = range(10)


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_are_what_the_peers_saw(seed: int) -> None:
    """Everything is counted: preemptions, deaths, resumed streams, grammars, deadlines, front ends
    that leave in mid-stream."""
    walker, watcher = watched_walk(seed)
    h = walker.h
    found = Figures(h)
    accepted = [request for request in watcher.requests() if request.accepted]
    rejected = Counter(r.rejected.code for r in watcher.requests() if r.rejected is not None)
    assert {code: n for code, n in found.requests_rejected.items() if n} == dict(rejected)
    assert found.requests_resumed == sum(request.submit.resumed for request in accepted)

    tokens = found.tenant_generation_tokens
    assert {name: n for name, n in tokens.items() if n} == dict(+watcher.tokens)
    prompts: Counter[str] = Counter()
    for request in accepted:
        if not request.submit.resumed:
            prompts[request.submit.tenant or "anonymous"] += len(request.submit.prompt_token_ids)
    counted = found.tenant_prompt_tokens
    assert {name: n for name, n in counted.items() if n} == dict(prompts)

    ended = Counter(watcher.last[id(r)] for r in accepted if is_over(r))
    ended["abort"] += sum(not is_over(r) for front in h.gone for r in accepted_of(front))
    assert {end: n for end, n in found.requests_ended.items() if n} == dict(+ended)
    opened = Counter(
        request.submit.tenant or "anonymous"
        for front in h.fronts
        for request in accepted_of(front)
        if not is_over(request)
    )
    now_open = found.tenant_open_requests
    assert {name: n for name, n in now_open.items() if n} == dict(opened)

    assert found.swapped_blocks == {"out": watcher.copies["out"], "in": watcher.copies["in"]}
    assert found.prefix_cache_hits <= found.prefix_cache_queries
    assert sum(found.kv_blocks.values()) == h.core.state.scheduling.pool.num_blocks
    assert found.step_seconds.cumulative()[-1][1] == found.steps <= watcher.plans
    assert found.iteration_tokens_total.total == h.core.state.workers.tokens_computed
    assert found.frontends == len(h.fronts)


def is_over(request: RequestScore) -> bool:
    return all(score.terminal is not None for score in request.sequences.values())


def accepted_of(front: Front) -> list[RequestScore]:
    return [request for request in front.requests.values() if request.accepted]


def test_the_histories_hold_what_they_are_for() -> None:
    totals: Counter[str] = Counter()
    for seed in SEEDS:
        found = Figures(watched_walk(seed)[0].h)
        totals.update({f"ended {end}": n for end, n in found.requests_ended.items()})
        totals.update({f"rejected {code}": n for code, n in found.requests_rejected.items()})
        totals.update(found.swapped_blocks)
        totals.update(
            resumed=found.requests_resumed,
            deaths=found.worker_deaths,
            preemptions=found.num_preemptions,
            tenants=len(found.tenant_open_requests),
            kept=found.kv_blocks["cached"],
            hits=found.prefix_cache_hits,
        )
    elsewhere = {"rejected limited", "rejected unavailable"}
    assert {name for name, count in totals.items() if not count} <= elsewhere, totals


def small(**options: Any) -> tuple[Harness, Front]:
    h = Harness(**options)
    return h, h.connect()


def test_refusals_that_histories_do_not_meet() -> None:
    h, front = small()
    for _ in range(3):
        h.submit(front, [5, 6, 7], tenant="t", grant=Grant(max_requests=1))
    h.core.drain(h.now)
    h.submit(front, [5, 6, 7])
    found = Figures(h)
    assert found.requests_rejected == {
        "invalid": 0,
        "overloaded": 0,
        "limited": 2,
        "unavailable": 1,
    }
    assert state(h).draining


def shown(h: Harness, family: str) -> dict[str, float]:
    """A gauge's values by the label that isn't the model; "" where it has no other."""
    (found,) = (each for each in families_of(state(h), ready=True) if each.name == family)
    return {
        "".join(value for name, value in each.labels.items() if name != "model_name"): each.value
        for each in found.samples
    }


def test_what_an_operator_has_stopped_is_seen() -> None:
    h, front = small()
    h.start_worker(life="w")

    def sleep() -> dict[str, float]:
        return shown(h, "vllm:engine_sleep_state")

    assert shown(h, "penstock:engine_paused") == {"": 0}
    assert sleep() == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    h.send(front, SetPaused(True))
    assert shown(h, "penstock:engine_paused") == {"": 1}
    h.send(front, SetPaused(False))
    h.send(front, PutToSleep(1))
    assert sleep() == {"awake": 0, "weights_offloaded": 1, "discard_all": 0}
    h.send(front, PutToSleep(2))
    assert sleep() == {"awake": 0, "weights_offloaded": 0, "discard_all": 1}
    h.send(front, WakeUp([]))
    assert sleep() == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}


def test_recovery_lasts_from_the_loss_to_the_next_step() -> None:
    h, front = small()
    h.start_worker()
    h.submit(front, [5, 6, 7])
    h.run_step()
    h.kill_worker()
    h.now += 1.5
    h.start_worker()  # It is ready, but what was lost is not yet made good.
    assert Figures(h).recovery_seconds.cumulative()[-1][1] == 0
    h.now += 0.5
    h.run_step()
    recovery = Figures(h).recovery_seconds
    assert (recovery.cumulative()[-1][1], recovery.total) == (1, pytest.approx(2.0))
    h.run()
    assert Figures(h).worker_deaths == 1
    assert Figures(h).recovery_seconds.cumulative()[-1][1] == 1


def test_recovery_without_work_ends_with_a_worker_that_is_ready() -> None:
    h, _ = small()
    h.start_worker()
    h.kill_worker()
    h.now += 2.0
    h.start_worker(ready=False)
    h.kill_worker()  # Twice, before anything could be done: it is one recovery.
    h.now += 1.0
    h.start_worker()
    recovery = Figures(h).recovery_seconds
    assert (recovery.cumulative()[-1][1], recovery.total) == (1, pytest.approx(3.0))
    assert Figures(h).worker_deaths == 2


def test_step_time_is_the_workers_and_the_rest() -> None:
    h, front = small()
    h.start_worker()
    h.submit(front, [5, 6, 7], max_tokens=4, ignore_eos=True)
    steps = 0
    while h.plans:
        h.now += 0.25
        h.run_step()
        steps += 1
    found = Figures(h)
    assert found.steps == steps
    assert found.step_seconds.total == pytest.approx(0.25 * steps)
    assert found.step_part_seconds["compute"] + found.step_part_seconds[
        "dispatch"
    ] == pytest.approx(0.25 * steps)
    assert found.step_sequences.total == steps
    assert found.iteration_tokens_total.total == 3 + (steps - 1)


def test_the_oldest_that_waits_for_its_first_step() -> None:
    h, front = small()
    assert Figures(h).oldest_waiting_seconds == 0
    h.submit(front, [5, 6, 7])
    h.now += 2
    h.submit(front, [5, 6])
    h.now += 5
    found = Figures(h)
    waiting = found.oldest_waiting_seconds, found.num_requests_waiting, found.waiting_tokens
    assert waiting == (7, 2, 5)
    assert state(h).unready == "no worker is connected"
    h.start_worker()
    h.run()
    found = Figures(h)
    assert (found.oldest_waiting_seconds, found.waiting_tokens) == (0, 0)
    assert state(h).unready == ""


def test_a_hundred_tenants_have_names_and_nothing_is_lost() -> None:
    h, front = small(max_waiting_requests=1000)
    names = [hashlib.sha256(bytes([n])).hexdigest()[:32] for n in range(MAX_TENANTS + 30)]
    for name in names:
        h.submit(front, [5, 6, 7], tenant=name, max_tokens=2, ignore_eos=True)
    assert Figures(h).tenant_open_requests[OTHER] == 30
    h.start_worker()
    h.run()
    found = Figures(h)
    prompts, generated = found.tenant_prompt_tokens, found.tenant_generation_tokens
    assert list(prompts) == list(generated) == [*names[:MAX_TENANTS], OTHER]
    assert (prompts[names[0]], generated[names[0]]) == (3, 2)
    assert (prompts[OTHER], generated[OTHER]) == (90, 60)
    assert found.tenant_open_requests == dict.fromkeys(prompts, 0)


def test_a_debt_is_what_a_tenant_had_more_than_another() -> None:
    h, front = small(scheduling_policy="fair", max_num_seqs=1)
    h.start_worker()
    for tenant, prompt in (("one", [5] * 4), ("other", [6] * 12)):
        h.submit(front, prompt, tenant=tenant, max_tokens=12, ignore_eos=True)
    charged = {"one": 0.0, "other": 0.0}
    most = 0.0
    while h.plans:
        plan = h.plan
        assert plan is not None
        for work in plan.work:
            sequence = h.core.state.scheduling.running[work.slot]
            assert sequence.table is not None
            tokens = work.count / 2 if work.count > 1 else 0  # of a prompt: half a token's cost
            charged[sequence.request.tenant] += tokens + 1 + len(sequence.table.blocks) / 64
        found = Figures(h)
        debts = found.tenant_debt
        live = [name for name, count in found.tenant_open_requests.items() if count]
        least = min(charged[name] for name in live)
        expected = {name: max(0.0, tokens - least) for name, tokens in charged.items()}
        assert debts == pytest.approx(expected, abs=0.5), charged
        most = max(most, *debts.values())
        h.run_step()
    assert most > 1
    assert set(Figures(h).tenant_debt.values()) == {0.0}, "nobody owes nobody"


def test_other_policies_know_no_debts() -> None:
    assert "tenant_debt" not in Figures(small()[0]).values
