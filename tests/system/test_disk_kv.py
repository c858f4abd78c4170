"""The tier on disk: answers have the same bits with it and without, and a later life computes only
what isn't there."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from penstock.errors import StartupError
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import ToWorker
from penstock_worker.stores.tier import StoreTier
from testing.in_process import Numerics, System, Way
from tests.system.test_matrix import (  # noqa: F401
    BLOCK,
    GREEDY,
    SAMPLED,
    TINY,
    Results,
    folder,
    results,
    submit_crowd,
    undisturbed,
)

pytestmark = [pytest.mark.timeout(300)]

FLOAT = Numerics("reference", "float32")
KINDS = [FLOAT, Numerics("reference", "float32", "int8"), Numerics("cpu", "float32")]
WAY = Way(BLOCK, 64, num_blocks=256)


def prompt(length: int, seed: int) -> list[int]:
    """Nothing of it is another's."""
    own = random.Random(seed)
    return [own.randrange(TINY.vocab_size) for _ in range(length)]


LONG = {
    300: (prompt(150, 300), 20, GREEDY, 1),
    301: (prompt(120, 301), 20, SAMPLED, 3),
}


def tier_of(system: System) -> StoreTier:
    assert system.loaded is not None
    return system.loaded.runner.feature(StoreTier)


def finished(system: System) -> Results:
    """After everything has been written, too."""
    system.run()
    tier, deadline = tier_of(system), time.monotonic() + 60
    while tier.writer.num_waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    found = results(system)
    assert system.loaded is not None
    system.loaded.runner.close()
    system.core.check()
    return found


def one_by_one(folder: Path, numerics: Numerics, way: Way) -> tuple[Results, System]:  # noqa: F811
    system = System(folder, numerics, way)
    system.submit(400, prompt(5, 0), 1, TokenSampling(seed=1))  # The worker loads.
    system.run()
    for number, request in LONG.items():
        system.submit(number, *request)
        system.run()
    finished(system)
    return said(system), system


def said(system: System) -> Results:
    return {
        key: (heard.tokens, msgspec.msgpack.encode(heard.logprobs), b"")
        for key, heard in system.heard.items()
        if key[0] in LONG
    }


def blocks_read(system: System) -> int:
    return system.core.state.counts.disk_blocks_read


@functools.cache
def alone(folder: Path, numerics: Numerics) -> Results:  # noqa: F811
    """Each of LONG by itself, with no cache of any kind."""
    system = System(folder, numerics, Way(BLOCK, 2048, 64, prefix_caching=False, steps=1))
    for number, request in LONG.items():
        system.submit(number, *request)
        system.run()
    return said(system)


@pytest.mark.parametrize("numerics", KINDS, ids=str)
def test_a_later_life_finds_prompts_and_says_the_same(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    numerics: Numerics,
) -> None:
    way = replace(WAY, disk=str(tmp_path))
    first, life = one_by_one(folder, numerics, way)
    assert first == alone(folder, numerics)
    assert blocks_read(life) == 0
    second, life = one_by_one(folder, numerics, way)
    assert second == alone(folder, numerics)
    assert blocks_read(life) == 9 + 7
    # All but what lies behind the last full block, of one sequence and of three.
    assert life.reused >= 9 * 16 + 3 * 7 * 16


def test_damage_is_computed_again(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    way = replace(WAY, disk=str(tmp_path))
    one_by_one(folder, FLOAT, way)
    (path,) = tmp_path.glob("*/*.kv")
    data = bytearray(path.read_bytes())
    stride = len(data) // (len(data) // 8000)
    for at in range(5 * stride + 500, len(data), 6 * stride):
        data[at] ^= 0x01
    path.write_bytes(data)
    found, life = one_by_one(folder, FLOAT, way)
    assert found == alone(folder, FLOAT)
    assert life.core.state.counts.disk_blocks_missed > 0
    assert blocks_read(life) > 0


@pytest.mark.parametrize("host_kib", [0, 4096])
def test_a_crowd_in_a_small_pool(
    folder: Path,  # noqa: F811
    undisturbed: Callable[[Numerics], Results],  # noqa: F811
    tmp_path: Path,
    host_kib: int,
) -> None:
    """Blocks are evicted, preempted, saved and read while others are computed."""
    way = Way(BLOCK, 64, 20, preemption="swap", host_kib=host_kib, disk=str(tmp_path))
    read = 0
    for _ in range(2):
        system = System(folder, FLOAT, way)
        system.submit(400, prompt(5, 0), 1, TokenSampling(seed=1))
        system.run()
        submit_crowd(system)
        for number, request in LONG.items():
            system.submit(number, *request)
        assert finished(system) == undisturbed(FLOAT)
        assert said(system) == alone(folder, FLOAT)
        read += blocks_read(system)
    assert read > 0


class Slow(System):
    """A disk that answers when the test wants it to."""

    def __init__(self, folder: Path, numerics: Numerics, way: Way) -> None:  # noqa: F811
        super().__init__(folder, numerics, way)
        self.held: list[ToWorker] = []
        self.slow = True

    def _work(self, message: ToWorker) -> None:
        if self.slow and type(message).__name__ == "FetchKV":
            self.held.append(message)
        else:
            super()._work(message)


def test_who_has_waited_long_enough_computes_and_late_blocks_are_found_later(
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    way = replace(WAY, disk=str(tmp_path))
    one_by_one(folder, FLOAT, way)
    system = Slow(folder, FLOAT, way)
    system.submit(400, prompt(5, 0), 1, TokenSampling(seed=1))
    system.run()
    system.submit(300, *LONG[300])
    while not system.held:
        system.run_step()
    assert system.core.num_waiting == 1
    system.now = 3600.0
    system.run()
    assert system.reused == 0
    cache = system.core.state.scheduling.cache
    assert cache is not None
    assert cache.num_fetching == 9
    system.slow = False
    for message in system.held:
        system._work(message)
    system.core.check()
    assert cache.num_fetching == 0
    finished(system)
    assert said(system) == {(300, 0): alone(folder, FLOAT)[300, 0]}


def test_models_that_it_does_not_serve_are_refused(tmp_path: Path, folder: Path) -> None:  # noqa: F811
    with pytest.raises(StartupError, match="enable_prefix_caching is off"):
        System(folder, FLOAT, replace(WAY, disk=str(tmp_path), prefix_caching=False))
