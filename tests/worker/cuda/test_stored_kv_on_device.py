"""KV that is kept elsewhere, from a GPU that is simulated: answers have the same bits with and
without."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import GenerationDefaults, PreparedModel
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, Save, SlotWork
from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.device.stored_cache import DeviceCache, LeavingBlocks, PinnedCopy
from penstock_worker.forward import buckets, triton
from penstock_worker.forward.triton_limits import attention_of
from penstock_worker.stores.peers.others import OtherWorkers
from penstock_worker.stores.tier import StoreTier
from testing.in_process import Numerics, System, Way
from testing.serving import wait_until
from tests.system.test_kv_transfer import store_of
from tests.system.test_windows import FULL, WINDOW, config_of
from tests.worker.checkpoints import tiny_files
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import NO_FILES
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import GROUPED, cache_shape
from tests.worker.models.test_recurrent_models import read as read_recurrent

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

FLOAT = Numerics("triton", "float32", batch_invariant=True)
GREEDY = TokenSampling(seed=1, temperature=0.0, logprobs=2)
SAMPLED = TokenSampling(seed=77, temperature=0.9, top_p=0.95, top_k=40, logprobs=2)
WAY = Way(block_size=4, budget=24, num_blocks=64, max_model_len=64, max_num_seqs=4, eager=True)

FOUND = 6 + 4
"""Full blocks of their prompts."""

MADE_UP = {"load_format": "dummy"}

Said = dict[tuple[int, int], tuple[list[int], bytes]]


def prompt(length: int, seed: int) -> list[int]:
    own = random.Random(seed)
    return [own.randrange(GROUPED.vocab_size) for _ in range(length)]


REQUESTS = {1: (prompt(26, 1), 3, GREEDY, 1), 2: (prompt(18, 2), 3, SAMPLED, 2)}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, unwarmed: None) -> Iterator[Device]:
    monkeypatch.setattr(buckets, "MAX_GRAPHS", 2)
    with simulated(Device(1 << 30)) as made:
        yield made


def model_folder(path: Path, config: ModelConfig = GROUPED, made_up: bool = False) -> Path:
    path.mkdir()
    files = NO_FILES if made_up else tiny_files(path, config)
    manifest = PreparedModel(
        format_version=FORMAT_VERSION,
        name="tiny",
        source="tiny",
        config=config,
        generation=GenerationDefaults(),
        weights=files,
        digest="0",
        has_chat_template=False,
    )
    (path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


def tier_of(system: System) -> StoreTier:
    assert system.loaded is not None
    return system.loaded.runner.feature(StoreTier)


def serve(system: System) -> None:
    """One request after another."""
    system.submit(400, prompt(5, 0), 1, TokenSampling(seed=1))  # The worker loads.
    system.run()
    for number, request in REQUESTS.items():
        system.submit(number, *request)
        system.run()


def finish(system: System) -> None:
    """After everything has been written."""
    assert system.loaded is not None
    tier = system.loaded.runner.features.find(StoreTier)
    if tier is not None:
        wait_until(lambda: not tier.writer.num_waiting)
    system.loaded.runner.close()
    system.core.check()


def life(folder: Path, way: Way, numerics: Numerics = FLOAT) -> tuple[Said, System]:
    system = System(folder, numerics, way)
    serve(system)
    finish(system)
    return said(system), system


def said(system: System) -> Said:
    return {
        key: (heard.tokens, msgspec.msgpack.encode(heard.logprobs))
        for key, heard in system.heard.items()
        if key[0] in REQUESTS
    }


def blocks_read(system: System) -> int:
    return system.core.state.counts.disk_blocks_read


@dataclass(frozen=True)
class Case:
    """found: blocks of tokens of each of REQUESTS that a later life finds."""

    config: ModelConfig = GROUPED
    numerics: Numerics = FLOAT
    way: Way = WAY
    found: tuple[int, int] = (6, 4)
    made_up: bool = False
    """Whether weights are."""


WINDOWED = config_of(WINDOW, FULL, WINDOW)
CASES = {
    "captured": Case(way=replace(WAY, eager=False)),
    "bfloat16": Case(numerics=replace(FLOAT, dtype="bfloat16")),
    "fp8": Case(numerics=replace(FLOAT, kv_cache="fp8")),
    "windows": Case(WINDOWED, way=replace(WAY, num_blocks=200)),
    "recurrent": Case(read_recurrent("lfm2"), way=replace(WAY, checkpoints=8), made_up=True),
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", CASES)
def test_a_later_life_finds_prompts_and_says_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    if case.made_up:
        opened = functools.partial(triton.open_weights)
        monkeypatch.setattr(
            triton, "open_weights", lambda *given, **more: opened(*given, **more | MADE_UP)
        )
    folder = model_folder(tmp_path / "model", case.config, case.made_up)
    alone, _ = life(folder, replace(case.way, prefix_caching=False), case.numerics)
    way = replace(case.way, disk=str(tmp_path / "kv"))
    first, system = life(folder, way, case.numerics)
    assert first == alone
    assert blocks_read(system) == 0
    second, system = life(folder, way, case.numerics)
    assert second == alone
    first_found, second_found = case.found
    assert system.reused >= 4 * (first_found + 2 * second_found)
    assert blocks_read(system) >= first_found + second_found


@pytest.mark.usefixtures("device")
def test_damage_is_computed_again(folder: Path, tmp_path: Path) -> None:
    way = replace(WAY, disk=str(tmp_path / "kv"))
    first, _ = life(folder, way)
    (path,) = (tmp_path / "kv").glob("*/*.kv")
    data = bytearray(path.read_bytes())
    stride = len(data) // (len(data) // 2200)
    for at in range(5 * stride + 500, len(data), 6 * stride):
        data[at] ^= 0x01
    path.write_bytes(data)
    found, system = life(folder, way)
    assert found == first
    assert tier_of(system).blocks()["damaged"] > 0
    assert 0 < blocks_read(system) < FOUND


def crowd(system: System) -> None:
    """All at once, with what each begins with in common."""
    system.submit(400, prompt(5, 0), 1, TokenSampling(seed=1))
    system.run()
    for number in range(10, 14):
        system.submit(number, prompt(14, 3) + prompt(5, number), 4, SAMPLED)
    for number, request in REQUESTS.items():
        system.submit(number, *request)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("host_kib", [64, 0])
def test_a_crowd_in_a_small_pool(folder: Path, tmp_path: Path, host_kib: int) -> None:
    """Blocks are evicted, preempted, saved and read while others are computed."""
    alone, _ = life(folder, replace(WAY, prefix_caching=False))
    kv = str(tmp_path / "kv")
    way = replace(WAY, num_blocks=18, preemption="swap", host_kib=host_kib, disk=kv)
    read = 0
    for _ in range(2):
        system = System(folder, FLOAT, way)
        crowd(system)
        system.run()
        finish(system)
        assert said(system) == alone
        read += blocks_read(system)
    assert read > 0


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("orderly", [True, False])
def test_a_step_that_takes_saved_blocks_comes_after_their_copies(
    orderly: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are made only when the step is done, if nobody sees to it: then other bytes are
    kept."""
    done, contents = threading.Event(), PinnedCopy.contents

    def late(copy: PinnedCopy) -> memoryview:
        done.wait(60)
        return contents(copy)

    monkeypatch.setattr(PinnedCopy, "contents", late)
    if not orderly:
        monkeypatch.setattr(LeavingBlocks, "overwriting", lambda *_: None)
    system = System(folder, FLOAT, replace(WAY, disk=str(tmp_path / "kv")))
    system.submit(400, prompt(5, 0), 1, TokenSampling(seed=1))
    done.set()
    system.run()
    done.clear()
    assert system.loaded is not None
    runner, (cache,) = system.loaded.runner, caches_of(system)
    runner.reset()
    plain = TokenSampling(seed=1)
    new = [NewSequence(0, prompt(9, seed), 9, 0, plain, [3, 4, 5]) for seed in (1, 2)]
    runner.execute(Plan(1, 0, [], new[:1], [SlotWork(0, 0, 9)]))
    before = cache[:, 3].cpu().numpy().tobytes()
    runner.execute(Plan(2, 1, [0], new[1:], [SlotWork(0, 0, 9)], saves=[Save(bytes(32), 3)]))
    after = cache[:, 3].cpu().numpy().tobytes()
    done.set()
    wait_until(lambda: tier_of(system)._store.has(bytes(32)))
    assert tier_of(system)._store.read(bytes(32)) == (before if orderly else after)
    assert before != after
    runner.close()


def caches_of(system: System) -> list[torch.Tensor]:
    """[parts, blocks, bytes] uint8 each."""
    cache: Any = tier_of(system)._cache
    assert isinstance(cache, DeviceCache)
    return [*cache._caches]


@pytest.mark.usefixtures("device")
def test_another_backend_finds_nothing(folder: Path, tmp_path: Path) -> None:
    """Whose numbers are others: not on disk, and not at another engine core."""
    way = replace(WAY, disk=str(tmp_path / "kv"), endpoint=f"ipc://{tmp_path}/kv.sock")
    first = System(folder, FLOAT, way)
    serve(first)
    on_cpu = replace(way, endpoint="", peers=way.endpoint)
    for numerics in (Numerics("reference", "float32"), replace(FLOAT, batch_invariant=False)):
        _, system = life(folder, on_cpu, numerics)
        assert blocks_read(system) == 0
    finish(first)


@pytest.mark.usefixtures("device")
def test_another_engine_core_has_computed_it(folder: Path, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/kv.sock"
    first = System(folder, FLOAT, replace(WAY, endpoint=endpoint))
    serve(first)
    first.step()  # What its last steps have finished.
    wait_until(lambda: not tier_of(first).writer.num_waiting)
    second = System(folder, FLOAT, replace(WAY, peers=endpoint))
    second.submit(400, prompt(5, 0), 1, GREEDY)
    second.run()
    asks = store_of(second)
    assert isinstance(asks, OtherWorkers)
    assert all(peer.socket.poll(20_000, 2) for peer in asks._peers)
    for number, request in REQUESTS.items():
        second.submit(number, *request)
        second.run()
    assert said(second) == said(first)
    assert blocks_read(second) == FOUND
    assert tier_of(second).transfers().blocks()["fetched"] == FOUND
    for system in (second, first):
        finish(system)


def test_scales_of_an_fp8_cache_are_part_of_a_layouts_name(tmp_path: Path) -> None:
    """A block's numbers are worth what they are multiplied by."""
    scales = [KVScales.of(torch.full((2,), value), torch.ones(2)) for value in (1.0, 0.5)]
    choices = attention_of(GROUPED, (torch.float32,), batch_invariant=True)
    shape = cache_shape(GROUPED, torch.float8_e4m3fn)
    digests = [
        TritonAttention(shape, 2, torch.device("cpu"), choices, scales=each).scales_digest()
        for each in ([], [scales[0]] * 2, [scales[0], scales[1]], [scales[1], scales[0]])
    ]
    assert digests[0] == b""
    assert len(set(digests)) == 4
