"""A part of the engine core takes part in what its methods say, once the state has it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from penstock.protocol.to_frontend import Status
from penstock_engine.core import EngineCore
from penstock_engine.core_state import CoreState, make_core_state
from penstock_engine.parts import HasDeadline, HoldsSequences, ReportsStatus, ServesFrontends
from tests.engine.fake_media import picture, shown
from tests.engine.harness import Harness
from tests.engine.small_facts import facts

OF_SEVERAL_PARTS = {
    "asleep",
    "paused",
    "prefix_caching",
    "ready",
    "reason",
    "waiting",
    "weights",
}
"""Fields of Status that no single part can report."""


class Alarm(HasDeadline, HoldsSequences, ReportsStatus, ServesFrontends):
    """A part of which everything can be asked."""

    def __init__(self) -> None:
        self.ended: list[bytes] = []

    @property
    def num_waiting(self) -> int:
        return 3

    def next_deadline(self) -> float:
        return 7.0

    def status(self) -> dict[str, Any]:
        return {"alarms": 1}

    def frontend_ended(self, session: bytes) -> None:
        self.ended.append(session)


@dataclass(slots=True)
class Alarmed(CoreState):
    alarm: Alarm = field(default_factory=Alarm)


def test_every_field_of_a_status_is_reported_once() -> None:
    state = make_core_state(facts())
    reported = [name for part in state.reporting_parts() for name in part.status()]
    assert sorted([*reported, *OF_SEVERAL_PARTS]) == sorted(Status.__struct_fields__)


def test_a_field_of_the_state_is_a_part_by_what_it_can_do() -> None:
    before = make_core_state(facts())
    values = {each.name: getattr(before, each.name) for each in fields(before)}
    state = Alarmed(**values)
    assert [*before.timed_parts(), state.alarm] == state.timed_parts()
    assert [*before.reporting_parts(), state.alarm] == state.reporting_parts()
    assert [*before.serving_parts(), state.alarm] == state.serving_parts()
    assert state.num_waiting == before.num_waiting + 3


def test_what_the_model_and_the_settings_lack_is_asked_for_nothing() -> None:
    """Neither by a turn of the core nor by the scheduler in a step."""
    core = EngineCore(facts(media=False))
    state = core.state
    assert state.absent == {"media", "adapters"}
    asked = [*state.timed_parts(), *state.holding_parts(), *state.reporting_parts()]
    for part in (state.media, state.adapters):
        assert part not in asked
        assert part not in state.scheduling.features.all
    whole = EngineCore(facts(max_loras=1)).state
    assert not whole.absent
    assert whole.scheduling.features.all == (whole.adapters, whole.media)


def test_media_are_refused_where_the_model_takes_none() -> None:
    h = Harness(facts(media=False))
    h.start_worker()
    request = h.submit(h.connect(), [1] * 6, media=shown((picture(1), 1)))
    assert request.rejected is not None
    assert "takes no images" in request.rejected.message


TIMED = (
    "adapters",
    "calls",
    "drain",
    "expected_prompts",
    "frontends",
    "grammars",
    "kv_sessions",
    "media",
    "remote_kv",
    "weights",
    "workers",
)


@pytest.mark.parametrize("name", TIMED)
def test_the_core_asks_each_part_for_its_deadline(name: str, monkeypatch: Any) -> None:
    core = EngineCore(facts(max_loras=1))
    assert core.next_deadline() >= 0.0
    part = getattr(core.state, name)
    monkeypatch.setattr(type(part), "next_deadline", lambda self: -1.0)
    assert core.next_deadline() == -1.0
