"""Memory for recurrent states is taken before the pool gets what is left."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import StartupError
from penstock.model.kv_layout import FULL, KVGroup, state_copies, state_memory
from penstock.model.recurrent_spec import ShortConvSpec
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_worker.machine import memory
from penstock_worker.machine.memory import pool_blocks
from penstock_worker.states.planning import planned_bytes, slot_states
from tests.worker.models.test_recurrent_models import read
from tests.worker.states.recurrent_sequences import Toy, sequence

FREE = 1000 << 20


def setup(**options: Any) -> Setup:
    required: dict[str, Any] = {
        "version": 1,
        "model_dir": "/",
        "dtype": "auto",
        "attention_backend": "auto",
        "threads": 1,
        "block_size": 16,
        "num_kv_blocks": None,
        "kv_memory_fraction": 0.5,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "max_model_len": 1 << 20,
    }
    return Setup(**(required | options))


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: FREE)


def test_the_pool_leaves_room_for_states() -> None:
    block = 1 << 20
    assert pool_blocks(setup(), block) == 500
    assert pool_blocks(setup(), block, states=300 << 20) == 350


def test_more_states_than_memory_are_refused_by_name() -> None:
    with pytest.raises(StartupError, match=r"64 sequences \(max_num_seqs\) take 1,001.0 MiB"):
        pool_blocks(setup(), 1 << 20, states=1001 << 20)


@pytest.mark.parametrize(("budget", "copies"), [(2048, 6), (7, 3), (1, 0)])
def test_results_and_copies_of_states_are_counted(budget: int, copies: int) -> None:
    """There are as many copies as sequences that have several tokens in a step."""
    config = read("lfm2")
    asked = setup(max_num_seqs=6, max_num_batched_tokens=budget)
    states = slot_states(config, (FULL, KVGroup(every=16, blocks=1)), asked)
    assert states is not None
    specs = [config.layer(number).recurrent for number in range(config.num_layers)]
    widths = [spec.width for spec in specs if isinstance(spec, ShortConvSpec)]
    each = sum(4 * width * 2 for width in widths)  # It sees two tokens before.
    assert planned_bytes(states, asked) == 6 * (each + 4 * sum(widths)) + copies * each
    assert planned_bytes(states, asked) == state_memory(config, 6, budget)
    assert planned_bytes(None, asked) == 0


def test_a_step_holds_no_more_copies_than_were_counted() -> None:
    toy = Toy()
    tokens = list(range(3, 33))
    new = [sequence(slot, tokens, [20 + 8 * slot + at for at in range(8)]) for slot in range(5)]
    toy.run(*(SlotWork(slot, 0, 3) for slot in range(5)), admitted=tuple(new))
    for counts in ([2, 2, 2, 1, 1], [1, 4, 1, 2, 1], [1, 1, 1, 1, 1]):
        starts = [toy.kind.slots[slot].computed or 0 for slot in range(5)]
        toy.run(*(SlotWork(slot, starts[slot], count) for slot, count in enumerate(counts)))
        held = [toy.states._held[slot].before for slot in range(5)]
        copied = sum(before[0].nbytes for before in held if before is not None)
        most = state_copies(5, sum(counts))
        assert copied == sum(count > 1 for count in counts) * toy.states.copied_bytes
        assert copied <= most * toy.states.copied_bytes


def test_a_pool_that_cannot_be_so_large_is_said(caplog) -> None:
    """FREE is about 1 GiB, and 100 were asked for."""
    pool_blocks(setup(kv_memory_bytes=FREE), 1 << 20)
    assert not caplog.records
    blocks = pool_blocks(setup(kv_memory_bytes=100 << 30), 1 << 20)
    assert blocks == 500
    assert "--kv-memory-gib asks for 100.0 GiB, and 1.0 GiB of memory are free" in caplog.text
    assert "the KV pool has 0.5 GiB" in caplog.text
