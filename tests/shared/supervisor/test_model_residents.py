"""Which models are loaded: decisions without processes, against what must hold of any of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from penstock.supervisor.models.residents import (
    LOST_SECONDS,
    Action,
    GrantModel,
    PrepareModel,
    ReclaimModel,
    Residents,
    StartModel,
    StopModel,
)

NAMES = ("a", "b", "c", "d")


@dataclass
class World:
    """Holders and processes that do what is asked of them, and notice what may not be."""

    residents: Residents
    sizes: dict[str, float]
    limit: float
    now: float = 0.0
    loaded: set[str] = field(default_factory=set)
    held: dict[str, set[int]] = field(default_factory=dict)
    open: dict[tuple[int, str], int] = field(default_factory=dict)
    waiting: dict[tuple[int, str], int] = field(default_factory=dict)
    reclaimed: set[tuple[int, str]] = field(default_factory=set)
    served: int = 0
    starts: list[str] = field(default_factory=list)

    def ask(self, holder: int, model: str) -> None:
        key = (holder, model)
        if holder in self.held.get(model, ()) and key not in self.reclaimed:
            self._open(key, 1)
            return
        self.waiting[key] = self.waiting.get(key, 0) + 1
        self.residents.want(holder, model, self.now)

    def _open(self, key: tuple[int, str], count: int) -> None:
        assert key[1] in self.loaded, "work for a model that is not loaded"
        self.open[key] = self.open.get(key, 0) + count
        self.residents.work(*key, self.now, busy=True)

    def end_one(self, key: tuple[int, str]) -> None:
        self.open[key] -= 1
        self.served += 1
        if self.open[key]:
            return
        del self.open[key]
        if key in self.reclaimed:
            self._leave(key)
        else:
            self.residents.work(*key, self.now, busy=False)

    def _leave(self, key: tuple[int, str]) -> None:
        self.reclaimed.discard(key)
        self.held[key[1]].discard(key[0])
        self.residents.leave(*key, self.now)
        if self.waiting.get(key):
            self.residents.want(*key, self.now)

    def step(self) -> None:
        """Until nothing more is to be done at this moment."""
        while actions := list(self.residents.decide(self.now)):
            for action in actions:
                self.do(action)

    def do(self, action: Action) -> None:
        match action:
            case PrepareModel(model):
                self.residents.prepared(model, self.sizes[model])
            case StartModel(model):
                assert model not in self.loaded
                self.loaded.add(model)
                self.starts.append(model)
                assert sum(self.sizes[each] for each in self.loaded) <= self.limit
                self.residents.seen(model, self.now)
            case StopModel(model):
                assert not self.held.get(model), "a model is ended that somebody holds"
                assert not any(key[1] == model for key in self.open), "ended under its work"
                self.loaded.discard(model)
                self.residents.stopped(model, self.now)
            case GrantModel(holder, model):
                self.held.setdefault(model, set()).add(holder)
                if count := self.waiting.pop((holder, model), 0):
                    self._open((holder, model), count)
            case ReclaimModel(holder, model):
                self.reclaimed.add((holder, model))
                if (holder, model) not in self.open:
                    self._leave((holder, model))


def world(limit: float = 2.0, **changes: float) -> World:
    settings = {"idle": 0.0, "turn": 5.0, "load_timeout": 60.0, **changes}
    sizes = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 2.0}
    residents = Residents(
        [(name, False) for name in NAMES],
        limit=limit,
        **settings,  # type: ignore[arg-type]
    )
    return World(residents, sizes, limit)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_asked_in_any_order_is_served_within_the_limit(seed: int) -> None:
    # do() asserts on the way that the limit holds, and that no work loses its model.
    draw = random.Random(seed)
    places, asked = world(), 0
    for _ in range(600):
        places.now += draw.random()
        if draw.random() < 0.4:
            places.ask(draw.randrange(3), draw.choice(NAMES))
            asked += 1
        if places.open and draw.random() < 0.6:
            places.end_one(draw.choice(sorted(places.open)))
        places.step()
    for _ in range(400):
        places.now += 1
        if places.open:
            places.end_one(draw.choice(sorted(places.open)))
        places.step()
    assert places.served == asked
    assert not places.waiting


def test_who_has_no_work_makes_way_before_who_has_and_the_longest_unused_first() -> None:
    places = world()
    for moment, name in enumerate("ab"):
        places.now = moment
        places.ask(1, name)
        places.step()
    places.now = 2
    places.end_one((1, "b"))  # a has work still.
    places.now = 3
    places.ask(1, "c")
    places.step()
    assert places.loaded == {"a", "c"}


def test_work_keeps_its_memory_for_a_turn_and_then_ends_before_its_model_goes() -> None:
    places = world()
    for name in "ab":
        places.ask(1, name)
    places.step()
    places.ask(1, "c")
    places.now = 4.9
    places.step()
    assert not places.reclaimed
    places.now = 5.0
    places.step()
    [(holder, model)] = places.reclaimed
    assert model in places.loaded
    places.end_one((holder, model))
    places.step()
    assert model not in places.loaded
    assert "c" in places.loaded


def test_a_large_model_is_not_overtaken_by_small_ones() -> None:
    places = world()
    places.ask(1, "a")
    places.step()
    places.now = 1
    places.ask(1, "d")  # It needs both places.
    places.now = 2
    places.ask(1, "b")
    places.step()
    assert places.starts == ["a"]
    places.now = 10
    places.step()
    places.end_one((1, "a"))
    places.step()
    assert places.starts == ["a", "d"]


def test_an_idle_model_goes_after_its_time_and_a_pinned_one_never() -> None:
    residents = Residents(
        [("a", False), ("p", True)], limit=None, idle=60.0, turn=1.0, load_timeout=60.0
    )
    places = World(residents, {"a": 1.0, "p": 1.0}, 10.0)
    places.ask(1, "a")
    places.step()
    places.end_one((1, "a"))
    assert places.loaded == {"a", "p"}
    places.now = 59
    places.step()
    assert places.loaded == {"a", "p"}
    places.now = 61
    places.step()
    assert places.loaded == {"p"}


def test_what_fails_waits_longer_each_time_and_others_go_on() -> None:
    residents = Residents([("a", False)], limit=None, idle=0.0, turn=1.0, load_timeout=60.0)
    now, waits = 0.0, []
    for _ in range(9):
        residents.want(1, "a", now)
        assert [type(each) for each in residents.decide(now)] == [PrepareModel]
        residents.failed("a", "no such file", now)
        [state] = residents.states(now)
        assert state.presence == "failed"
        assert state.reason == "no such file"
        residents.want(1, "a", now)
        assert list(residents.decide(now)) == []  # Not before its time.
        residents.gone(1)
        waits.append(state.retry_after)
        now += state.retry_after
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_model_that_can_never_fit_says_so() -> None:
    residents = Residents([("a", False)], limit=1.0, idle=0.0, turn=1.0, load_timeout=60.0)
    residents.want(1, "a", 0.0)
    assert list(residents.decide(0.0)) == [PrepareModel("a")]
    residents.prepared("a", 3.0)
    assert list(residents.decide(0.0)) == []
    [state] = residents.states(0.0)
    assert state.presence == "failed"
    assert "needs 3.00 GiB; 1 GiB are all there is" in state.reason


def test_a_model_that_does_not_become_ready_is_ended_and_tried_again_later() -> None:
    residents = Residents([("a", False)], limit=None, idle=0.0, turn=1.0, load_timeout=60.0)
    residents.want(1, "a", 0.0)
    list(residents.decide(0.0))
    residents.prepared("a", 1.0)
    assert list(residents.decide(0.0)) == [StartModel("a"), GrantModel(1, "a")]
    assert list(residents.decide(59.0)) == []
    assert list(residents.decide(60.0)) == [StopModel("a")]
    residents.stopped("a", 60.0)
    [state] = residents.states(60.0)
    assert (state.presence, state.reason) == ("failed", "it was not ready after 60 s")


def ready(residents: Residents, model: str, now: float) -> None:
    """Loads it for holder 1."""
    residents.want(1, model, now)
    for action in list(residents.decide(now)):
        if isinstance(action, PrepareModel):
            residents.prepared(action.model, 1.0)
    assert GrantModel(1, model) in list(residents.decide(now))
    residents.seen(model, now)


def two() -> Residents:
    """Two models, of which there is room for one."""
    return Residents(
        [("a", False), ("b", False)], limit=1.5, idle=0.0, turn=60.0, load_timeout=600.0
    )


def test_a_broken_connection_loses_no_hold() -> None:
    residents = two()
    ready(residents, "a", 0.0)
    residents.work(1, "a", 0.0, busy=True)
    residents.lost(1, 1.0)
    residents.want(2, "b", 1.0)
    for action in list(residents.decide(1.0)):
        assert isinstance(action, PrepareModel)
        residents.prepared("b", 1.0)
    list(residents.back(1, ["a"], ["a"], 2.0))
    # Its turn is over, and it is asked for while the holder can't hear.
    residents.lost(1, 100.0)
    actions = list(residents.decide(101.0))
    assert StopModel("a") not in actions
    # It is there again, has heard nothing, and is asked again.
    assert list(residents.back(1, ["a"], ["a"], 102.0)) == [ReclaimModel(1, "a")]
    assert StopModel("a") not in list(residents.decide(103.0))
    residents.leave(1, "a", 104.0)
    assert StopModel("a") in list(residents.decide(104.0))


def test_one_that_does_not_come_back_has_died() -> None:
    residents = two()
    ready(residents, "a", 0.0)
    residents.work(1, "a", 0.0, busy=True)
    residents.lost(1, 1.0)
    residents.want(2, "b", 1.0)
    list(residents.decide(1.0))
    residents.prepared("b", 1.0)
    assert StopModel("a") not in list(residents.decide(1.0 + LOST_SECONDS - 0.1))
    assert StopModel("a") in list(residents.decide(1.0 + LOST_SECONDS))


def test_what_was_said_while_a_connection_was_broken_is_made_up_for() -> None:
    residents = two()
    ready(residents, "a", 0.0)
    residents.lost(1, 1.0)
    # It left the model meanwhile; or was granted one, and never heard of it.
    assert list(residents.back(1, [], [], 1.2)) == []
    assert list(residents.unload("a")) == []
    assert list(residents.decide(1.2)) == [StopModel("a")]
    # It holds what was taken from it meanwhile.
    residents.stopped("a", 2.0)
    assert list(residents.back(1, ["a"], [], 2.0)) == [ReclaimModel(1, "a")]


def test_what_nobody_wants_any_more_is_not_started() -> None:
    residents = two()
    residents.want(1, "a", 0.0)
    assert list(residents.decide(0.0)) == [PrepareModel("a")]
    residents.unwant(1, "a")
    residents.prepared("a", 1.0)
    assert list(residents.decide(0.1)) == []
