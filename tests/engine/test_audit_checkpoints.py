"""What the core's own check finds wrong with checkpoints of recurrent states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock_engine.kv.checkpoints import Checkpoints
from penstock_engine.kv.pool import BrokenState
from penstock_engine.request.request import Sequence
from tests.engine.harness import Harness
from tests.engine.scheduler.test_states import PROMPT, harness


def running(n: int = 1) -> tuple[Harness, Sequence, Checkpoints]:
    """In the middle of its prompt: it has written one checkpoint, and is to write others."""
    h = harness(max_num_batched_tokens=12, max_steps_in_flight=1)
    h.start_worker(100)
    h.submit(h.connect(), PROMPT, n=n)
    h.run_step()
    [sequence] = h.core.state.scheduling.running.values()
    assert sequence.table is not None
    assert sequence.table.checkpoints is not None
    assert sequence.num_published == 3
    h.core.check()
    return h, sequence, sequence.table.checkpoints


def swapped(h: Harness, sequence: Sequence, states: Checkpoints) -> None:
    """Its checkpoints' blocks are one another's."""
    states.held.reverse()


def lost(h: Harness, sequence: Sequence, states: Checkpoints) -> None:
    """A checkpoint is given back, and not yet forgotten elsewhere."""
    assert h.core.state.scheduling.cache is not None
    h.core.state.scheduling.cache.release(states.held.pop())


def named_early(h: Harness, sequence: Sequence, states: Checkpoints) -> None:
    assert h.core.state.scheduling.cache is not None
    h.core.state.scheduling.cache.publish(states.held[-1][:1], [b"x" * 33])


def named_otherwise(h: Harness, sequence: Sequence, states: Checkpoints) -> None:
    sequence.request._prompt_keys[1] = b"y" * 32


def shared_early(h: Harness, sequence: Sequence, states: Checkpoints) -> None:
    """Two sequences are to write to one block."""
    assert sequence.table is not None
    sequence.table.held[0][-1] = states.held[-1][0]


def not_whole(h: Harness, sequence: Sequence, states: Checkpoints) -> None:
    assert h.core.state.scheduling.cache is not None
    h.core.state.scheduling.cache.release([states.held[-1].pop()])


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (swapped, "to be written, and is others' as well|name of other tokens"),
        (lost, "has room for checkpoint"),
        (named_early, "to be written, and is others' as well"),
        (named_otherwise, "has the name of other tokens' state"),
        (shared_early, "KV block"),
        (not_whole, "of other than 2 blocks"),
    ],
)
def test_what_is_wrong_is_found(
    breaks: Callable[[Harness, Sequence, Checkpoints], None], said: str
) -> None:
    h, sequence, states = running()
    breaks(h, sequence, states)
    with pytest.raises(BrokenState, match=said):
        h.core.check()


def test_a_tail_with_the_name_of_other_tokens_is_found() -> None:
    h, _, states = running(n=2)
    assert states.tail is not None
    states.tail = replace(states.tail, key=b"z" * 32)
    with pytest.raises(BrokenState, match="the tail behind 29 tokens is named by other tokens"):
        h.core.check()
