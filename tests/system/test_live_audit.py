"""Audits with real arithmetic: what damages an answer is found, and attributed to a tier; an
undamaged run finds nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.protocol.to_worker import Plan, ToWorker
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.keys import prefix_root, prompt_keys
from penstock_engine.waiting.live_audit import LiveAudit
from penstock_worker.stores.contents import Contents
from penstock_worker.stores.host_cache import HostCache, HostCopy
from testing.in_process import Numerics, System, Way
from tests.system.test_disk_kv import FLOAT, LONG, alone, blocks_read, finished, said
from tests.system.test_kv_transfer import Pair
from tests.system.test_matrix import (  # noqa: F401
    BLOCK,
    GREEDY,
    OURS,
    TINY,
    folder,
    results,
    undisturbed,
)

pytestmark = [pytest.mark.timeout(300)]
WAY = Way(BLOCK, 64, num_blocks=256, audit_share=1.0)


def audits(system: System) -> LiveAudit:
    found = system.core.state.audits
    assert found is not None
    return found


def audited(system: System) -> None:
    """Until every request has ended, and nothing waits to be audited."""
    system.run()
    while audits(system).num_held:
        system.run_step()


@pytest.mark.parametrize(
    ("numerics", "way"),
    [
        (FLOAT, WAY),
        (Numerics("cpu", "float32"), replace(WAY, speculation='{"method": "suffix"}')),
        (Numerics("cpu", "bfloat16"), replace(WAY, num_blocks=16, host_kib=4096)),
        (Numerics("cpu", "float32", "int8"), replace(WAY, num_blocks=16, preemption="recompute")),
    ],
    ids=["plain", "drafts", "small pool, host tier", "small pool, int8"],
)
def test_an_undamaged_run_has_no_differences(
    folder: Path,  # noqa: F811
    undisturbed: Any,  # noqa: F811
    numerics: Numerics,
    way: Way,
) -> None:
    system = System(folder, numerics, way)
    for number, ours in OURS.items():
        system.submit(number, *ours)
    audited(system)
    assert results(system) == undisturbed(numerics)
    assert audits(system).equal == sum(n for _, wanted, _, n in OURS.values() if wanted)
    assert (audits(system).different, sum(audits(system).skipped.values())) == (0, 0)


# ---- faults

PROMPT = LONG[300][0]
ANSWER = (PROMPT, 12, GREEDY)


def copies_of(system: System) -> Any:
    """The worker's blocks, on the device and in host memory."""
    assert system.loaded is not None
    runner: Any = system.loaded.runner
    return runner._kind._copies


def cache_of(system: System) -> KVCache:
    found = system.core.state.scheduling.cache
    assert found is not None
    return found


def flip(parts: list[np.ndarray], block: int) -> None:
    """Flips one bit: the highest of a mantissa (float32, little-endian)."""
    parts[0][block, 2] ^= 0x40


def keys_of(system: System) -> list[bytes]:
    """Of the prompt's blocks."""
    return list(prompt_keys(prefix_root("", ""), PROMPT, BLOCK))


def answered(system: System, number: int) -> tuple[list[int], list[Any]]:
    """The same question again, and its audit."""
    system.submit(number, *ANSWER)
    audited(system)
    heard = system.heard[number, 0]
    return heard.tokens, heard.logprobs


def begun(folder: Path, way: Way) -> tuple[System, Any]:  # noqa: F811
    """A system that has answered right once."""
    system = System(folder, FLOAT, way)
    right = answered(system, 1)
    assert (audits(system).equal, audits(system).different) == (1, 0)
    return system, right


def test_a_bit_flipped_in_the_pool(folder: Path) -> None:  # noqa: F811
    system, right = begun(folder, WAY)
    flip(copies_of(system)._device, cache_of(system)._block_of[keys_of(system)[3]])
    assert answered(system, 2) != right
    assert audits(system).found == {"prefix_cache": 1}
    reused = system.reused
    assert answered(system, 3) == right
    assert system.reused == reused, "the tier is off"
    assert (audits(system).equal, audits(system).different) == (2, 1)


def test_a_bit_flipped_in_host_memory(folder: Path) -> None:  # noqa: F811
    way = replace(WAY, num_blocks=16, host_kib=4096, max_model_len=192)
    system, right = begun(folder, way)
    other = [(token + 1) % TINY.vocab_size for token in PROMPT]
    system.submit(50, other, 12, GREEDY)  # What the first one computed makes room for it.
    audited(system)
    host = cache_of(system).host
    assert host is not None
    flip(copies_of(system)._host, host._blocks[keys_of(system)[3]])
    assert answered(system, 2) != right
    assert audits(system).found == {"host": 1}
    assert cache_of(system).host is None
    assert answered(system, 3) == right
    assert audits(system).different == 1


def test_a_bit_flipped_on_the_way_to_disk(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the checksum is made, which so is right."""
    way = replace(WAY, disk=str(tmp_path))
    whole = HostCache._copied

    def damaged(self: HostCache, block: int) -> HostCopy:
        copied = whole(self, block)
        copied._data[2] ^= 0x40
        return copied

    with monkeypatch.context() as patched:
        patched.setattr(HostCache, "_copied", damaged)
        system, right = begun(folder, way)
        finished(system)
    system = System(folder, FLOAT, way)
    system.submit(400, [1, 2, 3], 1, GREEDY)  # The worker loads.
    audited(system)
    assert answered(system, 2) != right
    assert blocks_read(system) > 0
    assert audits(system).found == {"disk": 1}
    assert answered(system, 3) == right
    assert audits(system).different == 1
    finished(system)


def test_a_bit_flipped_in_transit(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the checksum was compared."""
    two = Pair(folder, tmp_path, FLOAT, audit_share=1.0)
    two.compute()
    two.connect()
    whole = HostCache.write

    def damaged(self: HostCache, block: int, data: Contents) -> None:
        whole(self, block, data)
        flip(self._parts, block)

    monkeypatch.setattr(HostCache, "write", damaged)
    number, right = 300, alone(folder, FLOAT)[300, 0]
    two.second.submit(number, *LONG[number])
    audited(two.second)
    assert said(two.second)[number, 0] != right
    assert audits(two.second).found == {"peer": 1}
    two.close()


class FaultyLane(System):
    """A worker whose kernels store what the second of several sequences computes with a wrong
    bit."""

    def _work(self, message: ToWorker) -> None:
        if isinstance(message, Plan) and len(message.work) > 1:
            scheduling = self.core.state.scheduling
            table = scheduling.running[message.work[1].slot].table
            super()._work(message)
            if table is not None and table.blocks:
                flip(copies_of(self)._device, table.blocks[-1])
        else:
            super()._work(message)


def test_a_fault_of_a_kernel_in_one_lane(folder: Path) -> None:  # noqa: F811
    system = FaultyLane(folder, FLOAT, replace(WAY, prefix_caching=False))
    for number in (1, 3):
        system.submit(number, *OURS[number])
    audited(system)
    assert audits(system).different > 0
    assert set(audits(system).found) == {"none"}
    assert audits(system).off == []


def test_a_fault_of_the_replay_accuses_no_tier(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What differs is computed twice."""
    system, right = begun(folder, WAY)
    work, damage = system._work, [True]

    def once(message: ToWorker) -> None:
        work(message)
        replay = audits(system).sequence
        if replay is not None and len(replay.emitted) == 4 and damage and replay.table:
            damage.clear()
            flip(copies_of(system)._device, replay.table.blocks[0])

    monkeypatch.setattr(system, "_work", once)
    assert answered(system, 2) == right
    assert not damage
    assert audits(system).found == {"none": 1}
    assert audits(system).off == []
