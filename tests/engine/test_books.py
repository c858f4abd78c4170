"""A contradiction in a core's books is found, and named."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from penstock_engine.kv.pool import BrokenState
from penstock_engine.request.request import Sequence
from penstock_engine.request.states import SequenceState
from tests.engine.harness import Harness

Break = Callable[[Harness, Sequence], object]


def harness() -> tuple[Harness, Sequence, Sequence]:
    """With a sequence that runs, and one that is queued."""
    h = Harness(max_num_seqs=1, max_steps_in_flight=1)
    front = h.connect()
    h.start_worker()
    for first in (1, 2):
        h.submit(front, [first] * 6, max_tokens=9, ignore_eos=True)
    for _ in range(2):
        h.run_step()
    (running,) = h.core.state.scheduling.running.values()
    (queued,) = h.core.state.scheduling.queue.sequences()
    h.core.check()
    return h, running, queued


def of_progress(name: str, by: int) -> Break:
    return lambda _, it: setattr(it.progress, name, getattr(it.progress, name) + by)


def put(name: str, value: object) -> Break:
    return lambda _, it: setattr(it, name, value)


HOLDERS: dict[str, tuple[Break, str]] = {
    "another slot": (put("slot", 5), "holds a sequence of slot 5"),
    "no table": (put("table", None), "has no block table"),
    "more computed than sent": (of_progress("computed", 50), "has computed, scheduled, expected"),
    "drafts": (of_progress("drafts", -1), "has -1 drafts; 0 were sent"),
    "no room": (of_progress("drafts", 50), "has KV beyond its blocks"),
    "a ticket": (put("ticket", 7), "is in the queue too"),
    "a token more": (lambda _, it: it.emitted.append(3), "has 8 of 9 tokens"),
    "expects more": (of_progress("expected", 9), "expects"),
    "waits": (put("state", SequenceState.WAITING), "is WAITING"),
    "leaves": (
        lambda h, it: h.core.state.scheduling.leaving.update({3: it}),
        "is leaving, but doesn't run",
    ),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_of_a_sequence_that_runs(name: str) -> None:
    h, running, _ = harness()
    breaks, complaint = HOLDERS[name]
    breaks(h, running)
    with pytest.raises(BrokenState, match=f"slot .*{re.escape(complaint)}"):
        h.core.check()


QUEUED: dict[str, tuple[Break, str]] = {
    "runs": (put("state", SequenceState.RUNNING), "is RUNNING"),
    "a slot": (put("slot", 0), "holds a slot"),
    "scheduled": (of_progress("scheduled", 1), "is scheduled"),
    "expects": (of_progress("expected", 1), "expects tokens"),
}


@pytest.mark.parametrize("name", QUEUED)
def test_of_a_sequence_that_is_queued(name: str) -> None:
    h, _, queued = harness()
    breaks, complaint = QUEUED[name]
    breaks(h, queued)
    with pytest.raises(BrokenState, match=f"queued sequence .*{re.escape(complaint)}"):
        h.core.check()


PLACES: dict[str, tuple[Break, str]] = {
    "nowhere": (lambda h, it: h.core.state.scheduling.queue.remove(it), "is in 0 places, not 1"),
    "open": (lambda _, it: setattr(it.request, "open", 2), "2 are open"),
}


@pytest.mark.parametrize("name", PLACES)
def test_of_where_a_sequence_is(name: str) -> None:
    h, _, queued = harness()
    breaks, complaint = PLACES[name]
    breaks(h, queued)
    with pytest.raises(BrokenState, match=re.escape(complaint)):
        h.core.check()
