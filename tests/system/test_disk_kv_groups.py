"""KV of models with several groups, windows and recurrent layers, kept on disk and fetched from
another engine core: the same bits as without, and what can be found is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from penstock.protocol.common import TokenSampling
from penstock_worker.stores.peers.others import OtherWorkers
from testing.in_process import Numerics, System, Way
from tests.system import test_recurrent, test_windows
from tests.system.test_disk_kv import blocks_read, prompt, tier_of
from tests.system.test_kv_transfer import store_of
from tests.system.test_matrix import (
    BLOCK,
    GREEDY,
    SAMPLED,
    Results,
    results,
    submit_crowd,
)
from tests.system.test_recurrent import folder_of  # noqa: F401
from tests.system.test_windows import folders  # noqa: F401

pytestmark = [pytest.mark.timeout(300)]

WAY = Way(BLOCK, 64, num_blocks=512, checkpoints=32)
LONG = {
    300: (prompt(150, 300), 20, GREEDY, 1),
    301: (prompt(120, 301), 20, SAMPLED, 3),
}
CPU, FLOAT = Numerics("cpu", "float32"), Numerics("reference", "float32")
CASES = [
    # The last: tokens of each prompt of LONG that a later life finds.
    ("mixed", CPU, (144, 112)),
    ("windows", Numerics("cpu", "float32", "int8"), (144, 112)),
    pytest.param("chunks", FLOAT, (144, 112), marks=pytest.mark.slow),
    ("lfm2", FLOAT, (128, 96)),
    ("qwen3-next", CPU, (128, 96)),
]


@pytest.fixture
def folder_for(
    folders: Callable[[str], Path],  # noqa: F811
    folder_of: Callable[[str], Path],  # noqa: F811
) -> Callable[[str], Path]:
    return lambda case: (folders if case in ("mixed", "windows", "chunks") else folder_of)(case)


def begun(folder: Path, numerics: Numerics, way: Way) -> System:
    """With its worker loaded."""
    system = System(folder, numerics, way)
    system.submit(400, prompt(5, 0), 1, TokenSampling(seed=1))
    system.run()
    return system


def serve(system: System) -> Results:
    for number, request in LONG.items():
        system.submit(number, *request)
        system.run()
    return {
        key: (heard.tokens, msgspec.msgpack.encode(heard.logprobs), b"")
        for key, heard in system.heard.items()
        if key[0] in LONG
    }


def written(system: System) -> None:
    """All that is computed has been kept."""
    system.step()
    until = time.monotonic() + 60
    writer = tier_of(system).writer
    while writer.num_waiting and time.monotonic() < until:
        time.sleep(0.01)
    assert not writer.num_left_out


def close(system: System) -> None:
    assert system.loaded is not None
    system.loaded.runner.close()
    system.core.check()


def alone(folder: Path, numerics: Numerics) -> Results:
    way = Way(BLOCK, 2048, 512, prefix_caching=False, steps=1, checkpoints=32)
    return serve(begun(folder, numerics, way))


@pytest.mark.parametrize(("case", "numerics", "found"), CASES, ids=str)
def test_a_later_life_finds_what_each_group_needs_and_says_the_same(
    folder_for: Callable[[str], Path],
    tmp_path: Path,
    case: str,
    numerics: Numerics,
    found: tuple[int, int],
) -> None:
    folder, way = folder_for(case), replace(WAY, disk=str(tmp_path))
    true = alone(folder, numerics)
    first = begun(folder, numerics, way)
    assert serve(first) == true
    assert not blocks_read(first)
    written(first)
    close(first)
    second = begun(folder, numerics, way)
    before = second.reused
    assert serve(second) == true
    assert second.core.state.counts.disk_blocks_missed == 0
    # The three sequences of one request share what was read.
    assert second.reused - before >= found[0] + 3 * found[1]
    groups = second.core.state.scheduling.kv_groups
    pieces = 0 if groups.states is None else groups.states.pieces
    needed = [groups.firsts(tokens // BLOCK) for tokens in found]
    blocks = sum(
        tokens // BLOCK - first
        for tokens, firsts in zip(found, needed, strict=True)
        for first in firsts
    )
    assert blocks_read(second) == blocks + 2 * pieces
    close(second)


@pytest.mark.parametrize(("case", "numerics"), [("mixed", CPU), ("lfm2", FLOAT)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_damage_is_computed_again(
    folder_for: Callable[[str], Path], tmp_path: Path, case: str, numerics: Numerics, seed: int
) -> None:
    folder, way = folder_for(case), replace(WAY, disk=str(tmp_path))
    true = alone(folder, numerics)
    first = begun(folder, numerics, way)
    assert serve(first) == true
    written(first)
    close(first)
    own = random.Random(seed)
    (path,) = tmp_path.glob("*/*.kv")
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    for _ in range(6):
        data[own.randrange(end)] ^= 1 << own.randrange(8)
    path.write_bytes(data)
    second = begun(folder, numerics, way)
    assert serve(second) == true
    close(second)


@pytest.mark.parametrize(("case", "numerics"), [("mixed", CPU), ("qwen3-next", CPU)], ids=str)
def test_another_engine_core_has_computed_it(
    folder_for: Callable[[str], Path], tmp_path: Path, case: str, numerics: Numerics
) -> None:
    folder, endpoint = folder_for(case), f"ipc://{tmp_path}/kv.sock"
    true = alone(folder, numerics)
    first = begun(folder, numerics, replace(WAY, endpoint=endpoint))
    second = begun(folder, numerics, replace(WAY, peers=endpoint))
    assert serve(first) == true
    written(first)
    asks = store_of(second)
    assert isinstance(asks, OtherWorkers)
    assert all(peer.socket.poll(20_000, 2) for peer in asks._peers)
    assert serve(second) == true
    assert blocks_read(second) > 10
    assert second.core.state.counts.disk_blocks_missed == 0
    close(second)
    close(first)


def test_another_length_of_context_is_another_layout(
    folder_for: Callable[[str], Path], tmp_path: Path
) -> None:
    """A window that no sequence outgrows is none, so that layers lie in other groups."""
    folder = folder_for("mixed")
    for most in (256, 36):
        system = begun(folder, CPU, replace(WAY, disk=str(tmp_path), max_model_len=most))
        close(system)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


@pytest.mark.parametrize(
    ("case", "numerics", "blocks"), [("mixed", CPU, 36), ("lfm2", FLOAT, 40)], ids=str
)
def test_a_crowd_in_a_small_pool(
    folder_for: Callable[[str], Path],
    tmp_path: Path,
    case: str,
    numerics: Numerics,
    blocks: int,
) -> None:
    """Blocks are evicted, preempted, saved and read while others are computed."""
    folder = folder_for(case)
    true = (test_windows if case == "mixed" else test_recurrent).undisturbed(folder, numerics)
    way = replace(WAY, num_blocks=blocks, preemption="swap", host_kib=4096, disk=str(tmp_path))
    read = 0
    for _ in range(2):
        system = begun(folder, numerics, way)
        submit_crowd(system)
        system.run()
        found = {key: heard for key, heard in results(system).items() if key[0] != 400}
        assert found == true
        written(system)
        read += blocks_read(system)
        close(system)
    assert read > 0
