"""Models on demand, as a gateway sees them: waiting, keeping, giving back."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from penstock.errors import DeadlineExceeded, EngineUnavailable, ModelFailed
from penstock.protocol.from_supervisor import ModelState, Presence
from penstock.protocol.to_supervisor import (
    Busy,
    Idle,
    Leave,
    Seen,
    ToSupervisor,
    Unload,
    Unwant,
    Want,
)
from penstock_gateway.models.residence import Residence


@dataclass
class Place:
    """A model that comes when the test says so."""

    up: bool = False
    reached: bool = True
    patience: float = 60.0
    told: list[ToSupervisor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.residence = Residence(
            "m", pinned=False, is_up=lambda: self.up, tell=self._tell, patience=self.patience
        )

    def _tell(self, message: ToSupervisor) -> bool:
        if self.reached:
            self.told.append(message)
        return self.reached

    def take(self) -> list[type[ToSupervisor]]:
        """What was told since the last look."""
        told, self.told = self.told, []
        return [type(message) for message in told]

    def state(self, presence: Presence, reason: str = "", retry_after: float = 0.0) -> None:
        state = ModelState(model="m", presence=presence, reason=reason, retry_after=retry_after)
        self.residence.take_state(state, time.monotonic())

    def bring(self) -> None:
        self.residence.granted()
        self.up = True
        self.residence.look()


async def work(place: Place, done: asyncio.Event, deadline: float | None = None) -> float:
    async with place.residence.stay(deadline) as waited:
        await done.wait()
    return waited


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_many_requests_are_one_wish_and_go_on_together() -> None:
    place, done = Place(), asyncio.Event()
    tasks = [asyncio.create_task(work(place, done)) for _ in range(3)]
    await turns()
    assert place.take() == [Want]
    assert place.residence.waiting == 3
    place.bring()
    await turns()
    assert place.take() == [Busy, Seen, Busy]
    assert place.residence.waiting == 0
    done.set()
    assert all(waited > 0 for waited in await asyncio.gather(*tasks))
    assert place.take() == [Idle]
    assert await work(place, done) == 0.0  # It is here still.
    assert place.take() == [Busy, Idle]


async def test_asked_for_it_back_it_ends_its_work_first_and_new_work_waits() -> None:
    place, done, later = Place(), asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(work(place, done))
    await turns()
    place.bring()
    await turns()
    place.take()
    place.residence.reclaimed()
    second = asyncio.create_task(work(place, later))
    await turns()
    assert place.take() == []
    assert place.residence.waiting == 1
    done.set()
    await first
    assert place.take() == [Leave, Want]
    place.bring()
    await turns()
    later.set()
    assert await second > 0


async def test_an_idle_model_is_given_back_at_once() -> None:
    place = Place()
    place.residence.granted()
    place.take()
    place.residence.reclaimed()
    assert place.take() == [Leave]


async def test_a_deadline_ends_the_waiting() -> None:
    place = Place()
    with pytest.raises(DeadlineExceeded):
        await work(place, asyncio.Event(), time.monotonic() + 0.05)
    assert place.residence.waiting == 0


async def test_patience_ends_it_without_one() -> None:
    place = Place(patience=0.05)
    with pytest.raises(EngineUnavailable, match=r"was not ready after 0\.05 s"):
        await work(place, asyncio.Event())


async def test_a_model_that_fails_is_told_to_all_who_wait_and_tried_again_later() -> None:
    place, done = Place(), asyncio.Event()
    tasks = [asyncio.create_task(work(place, done)) for _ in range(2)]
    await turns()
    place.take()
    place.state("failed", "its weights are broken", retry_after=0.6)
    for task in tasks:
        with pytest.raises(ModelFailed, match="its weights are broken") as caught:
            await task
        assert caught.value.retry_after == 1.0
    with pytest.raises(ModelFailed):
        await work(place, done)
    assert place.take() == []
    await asyncio.sleep(0.61)
    again = asyncio.create_task(work(place, done))
    await turns()
    assert place.take() == [Want]
    place.state("starting")
    place.bring()
    done.set()
    await again


async def test_who_leaves_while_it_loads_leaves_it_idle() -> None:
    place = Place()
    task = asyncio.create_task(work(place, asyncio.Event()))
    await turns()
    place.residence.granted()
    assert place.take() == [Want, Busy]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert place.take() == [Idle]


async def test_a_new_supervisor_is_asked_for_what_is_in_use() -> None:
    place, done = Place(reached=False), asyncio.Event()
    task = asyncio.create_task(work(place, done))
    await turns()
    place.reached = True
    place.residence.connected()
    assert place.take() == [Want]
    place.bring()
    done.set()
    await task


async def test_what_is_held_stays_held_while_the_connection_is_broken() -> None:
    place, done = Place(), asyncio.Event()
    task = asyncio.create_task(work(place, done))
    await turns()
    place.bring()
    await turns()
    place.take()
    place.reached = False
    assert place.residence.held
    assert place.residence.busy
    place.reached = True
    place.residence.connected()
    assert place.take() == []
    assert await work(place, done_at_once()) == 0.0
    done.set()
    await task
    assert place.take() == [Idle]


def done_at_once() -> asyncio.Event:
    done = asyncio.Event()
    done.set()
    return done


async def test_nobody_waits_any_more_before_it_was_granted() -> None:
    place = Place()
    waiting = [asyncio.create_task(work(place, asyncio.Event())) for _ in range(2)]
    await turns()
    assert place.take() == [Want]
    waiting[0].cancel()
    await turns()
    assert place.take() == []
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert place.take() == [Unwant]
    again = asyncio.create_task(work(place, done_at_once()))
    await turns()
    assert place.take() == [Want]
    place.bring()
    await again


async def test_a_client_may_have_it_unloaded() -> None:
    place = Place()
    place.residence.unload()
    assert place.take() == [Unload]
