"""KV blocks that leave the device and come back, by way of a folder and of another worker: whether
they come back as they were, whether a model says the same with them, and how fast they are."""

from __future__ import annotations

import queue
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from loadtest.gpu.extent import CAPTURED, Mode
from loadtest.gpu.job import Job
from loadtest.gpu.machine import cpu_kernels
from loadtest.gpu.parts.steps import BLOCK, release_memory, runner_of, setup_of
from penstock.prepare import prepare
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import FetchKV, LookUpKV, NewSequence, Plan, Save, Setup, SlotWork
from penstock_worker.stores.tier import StoreTier

PATIENCE = 60.0
"""Seconds for whatever goes on beside steps."""
UNBOUNDED = 2**40


def run(job: Job) -> None:
    if (kernels := cpu_kernels()).startswith("none"):
        job.fault(
            f"what follows is of numpy's checksum, not of the product: CPU kernels: {kernels}"
        )
    with job.attempt("copies"):
        measure_copies(job)
    release_memory()
    folder = prepare(str(job.model_folder()), cache_dir=job.work / "cache")
    with job.attempt("disk"):
        job.need(5.0)
        with worker(job, folder, disk_kv_dir=str(job.work / "kv")) as runner:
            compute(job, runner)
            keep(job, runner, "to disk")
            come_back(job, runner, "from disk")
    release_memory()
    with job.attempt("transfer"):
        job.need(5.0)
        endpoint = f"ipc://{job.work}/kv.sock"
        with (
            worker(job, folder, kv_endpoint=endpoint) as runner,
            worker(job, folder, kv_peers=(endpoint,)) as asking,
        ):
            compute(job, runner)
            keep(job, runner, "for others")
            compute(job, asking)
            come_back(job, asking, "from another worker")
    release_memory()


def measure_copies(job: Job) -> None:
    """Measures copies of the model's blocks, to pinned memory and back, without what keeps them."""
    import torch

    from penstock_worker.device.stored_cache import stored_cache

    config, count = job.config, job.extent.stored_blocks
    parts, width = 2 * config.num_layers * config.num_kv_heads, 2 * BLOCK * config.head_dim
    size = (parts, 2 * count, width)
    caches = [torch.randint(0, 256, size, dtype=torch.uint8, device=job.device)]
    cache = stored_cache(caches, count)
    cache.reserve(count)
    begun = time.perf_counter()
    copies = cache.copy_out(range(count))
    contents = [copy.contents() for copy in copies]
    _row(job, "to pinned memory", count, parts * width, time.perf_counter() - begun)
    begun = time.perf_counter()
    filling = cache.fill(range(count, 2 * count))
    for block, data in enumerate(contents, count):
        filling.await_room()
        filling.write(block, data)
    filling.close()
    filling.wait()
    seconds = time.perf_counter() - begun
    same = torch.equal(caches[0][:, :count], caches[0][:, count:])
    _row(job, "from memory", count, parts * width, seconds, same)


def worker(job: Job, folder: Path, **kept: Any) -> AbstractContextManager[Any]:
    """A worker's runner, which keeps KV there."""
    return runner_of(job, setup(job, folder, **kept), model=job.model)


def setup(job: Job, folder: Path, **kept: Any) -> Setup:
    """The setup of one sequence, and of blocks that come back beside its own."""
    tokens = (job.extent.stored_blocks + 2) * BLOCK + job.extent.behind_stored
    mode = Mode(CAPTURED, (1,), enforce_eager=True)
    plain = setup_of(
        job.extent, folder, mode, job.device.type, slots=1, longest=tokens, tokens=2 * tokens
    )
    more = {
        "disk_kv_bytes": UNBOUNDED,
        "disk_kv_write_bytes": UNBOUNDED,
        "kv_transfer_bytes": 2 * job.extent.stored_blocks * _block_bytes(job),
    }
    return msgspec.structs.replace(plain, **more, **kept)


def compute(job: Job, runner: Any) -> None:
    """The prompt, in its first blocks."""
    count, step = job.extent.stored_blocks, 0
    done, admitted = 0, [_sequence(job, range(count + 2))]
    while done < count * BLOCK:
        chunk = min(job.extent.step_tokens, count * BLOCK - done)
        step += 1
        plan = Plan(step, step - 1, [], admitted, [SlotWork(0, done, chunk)])
        _healthy(runner.begin(plan).result())
        done, admitted = done + chunk, []


def keep(job: Job, runner: Any, what: str) -> None:
    count, tier = job.extent.stored_blocks, runner.feature(StoreTier)
    begun = time.perf_counter()
    # As many at a time as may wait.
    for first in range(0, count, 32):
        numbers = range(first, min(first + 32, count))
        tier.save([Save(_key(number), number) for number in numbers])
        while tier.writer.num_written < numbers[-1] + 1:
            if time.perf_counter() - begun > PATIENCE or tier.writer.num_left_out:
                raise RuntimeError(f"{tier.blocks()} of {count} blocks")
            time.sleep(0.0005)
    _row(job, what, count, _block_bytes(job), time.perf_counter() - begun)


def come_back(job: Job, runner: Any, what: str) -> None:
    """Raises RuntimeError where they aren't what was computed here, or other tokens follow."""
    count, tier = job.extent.stored_blocks, runner.feature(StoreTier)
    keys = [_key(number) for number in range(count)]
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    until = time.perf_counter() + PATIENCE
    found = 0
    while found < count and time.perf_counter() < until:  # Another worker may have to be reached.
        tier.look_up(LookUpKV(1, keys), answers.put)
        found = answers.get(timeout=PATIENCE).count
    expected = answer(job, runner, range(count))
    begun = time.perf_counter()
    runner.receive(FetchKV(1, keys, [*range(count + 2, 2 * count + 2)]), answers.put)
    fetched = answers.get(timeout=PATIENCE).count
    seconds = time.perf_counter() - begun
    if fetched < count:
        raise RuntimeError(f"{what}: {fetched} of {count} blocks came back, {found} were found")
    same = answer(job, runner, range(count + 2, 2 * count + 2)) == expected
    _row(job, what, count, _block_bytes(job), seconds, same)


def answer(job: Job, runner: Any, blocks: range) -> list[Any]:
    """Tokens and their log-probabilities behind a prompt whose KV is in these blocks."""
    count, found = job.extent.stored_blocks, []
    runner.reset()
    own = [*blocks, count, count + 1]
    start = count * BLOCK
    new = _sequence(job, own, tokens=start + 1)
    for step in range(1, job.extent.behind_stored + 1):
        work = [SlotWork(0, start + step - 1, 1)]
        result = runner.begin(Plan(step, step - 1, [], [new] if step == 1 else [], work)).result()
        _healthy(result)
        found.append((result.slots[0].token, result.slots[0].logprobs))
    return found


def _sequence(job: Job, blocks: Any, tokens: int | None = None) -> NewSequence:
    count = tokens or job.extent.stored_blocks * BLOCK
    # Knuth's multiplicative hash of their positions (1973).
    ids = [1 + at * 2_654_435_761 % (job.config.vocab_size - 1) for at in range(count)]
    sampling = TokenSampling(seed=1, temperature=0.6, logprobs=2)
    return NewSequence(0, ids, count, 0, sampling, [*blocks])


def _healthy(result: Any) -> None:
    errors = [each.error for each in result.slots if each.error is not None]
    if errors:
        raise RuntimeError(errors[0])


def _key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def _block_bytes(job: Job) -> int:
    config = job.config
    return 2 * config.num_layers * config.num_kv_heads * 2 * BLOCK * config.head_dim


def _row(
    job: Job, what: str, blocks: int, each: int, seconds: float, same: bool | None = None
) -> None:
    size = blocks * each
    job.row(what=what, blocks=blocks, bytes=size, seconds=seconds, per_s=size / seconds, same=same)
    if same is False:
        raise RuntimeError(f"{what}: not what was there before")
