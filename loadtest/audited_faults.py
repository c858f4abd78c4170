"""Faults that are injected into a real model's engine core and worker, which run in this process
with every answer audited: see `loadtest.audits`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from loadtest.report import SetupError
from penstock.adapters import read_adapter
from penstock.prepare import load_manifest
from penstock.protocol.common import AdapterFile, TokenSampling
from penstock.protocol.to_worker import Plan, ToWorker
from penstock_engine.kv.keys import prefix_root, prompt_keys
from penstock_engine.waiting.live_audit import LiveAudit
from penstock_worker.stores.contents import Contents
from penstock_worker.stores.host_cache import HostCache, HostCopy
from tests.adapter_folders import random_factors, write_peft
from tests.system.in_process import Numerics, System, Way, prompt

BLOCK, PROMPT_TOKENS, ANSWER_TOKENS = 16, 200, 32
NUMERICS = Numerics("auto", "auto")
WAY = Way(BLOCK, 256, num_blocks=512, max_model_len=512, audit_share=1.0)
BIT = 0x40
"""The bit that is flipped in a byte: the highest of a bfloat16's mantissa."""
FLIPPED = 3
"""The prompt's block that is damaged."""
GREEDY = TokenSampling(seed=0, temperature=0.0)
QUESTION = prompt(PROMPT_TOKENS, 1)


class Audited(System):
    """A real model's System. damaged: called after each of its worker's steps.  taken: what its
    worker takes for the plan that it is sent."""

    def __init__(self, folder: Path, way: Way) -> None:
        super().__init__(folder, NUMERICS, way)
        self.damaged: Callable[[Plan], None] = lambda plan: None
        self.taken: Callable[[Plan], Plan] = lambda plan: plan
        self.adapter: AdapterFile | None = None
        """The adapter with which everything is asked; None: the model alone."""
        self._last = 0

    def _work(self, message: ToWorker) -> None:
        if not isinstance(message, Plan):
            super()._work(message)
            return
        super()._work(self.taken(message))
        self.damaged(message)

    @property
    def audits(self) -> LiveAudit:
        found = self.core.state.audits
        if found is None:
            raise SetupError("the engine core audits nothing")
        return found

    @property
    def copies(self) -> Any:
        """The worker's blocks, on the device and in host memory."""
        if self.loaded is None:
            raise SetupError("the worker has loaded nothing")
        runner: Any = self.loaded.runner
        return runner._kind._copies

    def ask(self, *questions: list[int], answer: int = ANSWER_TOKENS) -> float:
        """Asks at once; the seconds until all are answered. Audits are still to come."""
        begun = time.perf_counter()
        for question in questions:
            self._last += 1
            self.submit(self._last, question, answer, GREEDY, adapter=self.adapter)
        self.run()
        return time.perf_counter() - begun

    def settle(self) -> None:
        """Runs steps until nothing waits to be audited."""
        while self.audits.num_held:
            self.run_step()


class Fault(NamedTuple):
    """tier: that audits must accuse.  inject: gives a system with one right answer, and the
    damage begins when that is asked for."""

    name: str
    tier: str
    inject: Callable[[Path, Path], contextlib.AbstractContextManager[Audited]]


def flip(parts: list[Any], block: int) -> None:
    parts[0][block, 2] ^= BIT


def _key() -> bytes:
    return list(prompt_keys(prefix_root("", ""), QUESTION, BLOCK))[FLIPPED]


def _begun(folder: Path, way: Way) -> Audited:
    system = Audited(folder, way)
    system.ask(QUESTION)
    system.settle()
    if system.audits.different:
        raise SetupError("an answer was wrong before anything was damaged")
    return system


@contextlib.contextmanager
def in_pool(folder: Path, place: Path) -> Iterator[Audited]:
    system = _begun(folder, WAY)
    cache: Any = system.core.state.scheduling.cache
    flip(system.copies._device, cache._block_of[_key()])
    yield system


@contextlib.contextmanager
def in_host_memory(folder: Path, place: Path) -> Iterator[Audited]:
    system = _begun(folder, replace(WAY, num_blocks=24, host_kib=2**18))
    system.ask(prompt(PROMPT_TOKENS, 2))  # What the first one computed makes room for it.
    system.settle()
    host: Any = system.core.state.scheduling.cache
    flip(system.copies._host, host.host._blocks[_key()])
    yield system


@contextlib.contextmanager
def _patched(name: str, damaged: Callable[..., Any]) -> Iterator[None]:
    whole = getattr(HostCache, name)
    setattr(HostCache, name, damaged(whole))
    try:
        yield
    finally:
        setattr(HostCache, name, whole)


@contextlib.contextmanager
def on_the_way_to_disk(folder: Path, place: Path) -> Iterator[Audited]:
    """Damages blocks before the checksum is made, which so is right."""

    def damaged(whole: Callable[..., HostCopy]) -> Callable[..., HostCopy]:
        def copied(self: HostCache, block: int) -> HostCopy:
            copy = whole(self, block)
            copy._data[2] ^= BIT
            return copy

        return copied

    way = replace(WAY, disk=str(place))
    with _patched("_copied", damaged):
        _close(_begun(folder, way))
    system = Audited(folder, way)
    system.ask([1, 2, 3], answer=1)  # The worker loads.
    system.settle()
    yield system
    _close(system)


@contextlib.contextmanager
def in_transit(folder: Path, place: Path) -> Iterator[Audited]:
    """Damages blocks after the checksum was compared."""

    def damaged(whole: Callable[..., None]) -> Callable[..., None]:
        def write(self: HostCache, block: int, data: Contents) -> None:
            whole(self, block, data)
            flip(self._parts, block)

        return write

    way = replace(WAY, disk=str(place))
    _close(_begun(folder, way))
    system = Audited(folder, way)
    system.ask([1, 2, 3], answer=1)
    system.settle()
    with _patched("write", damaged):
        yield system
    _close(system)


@contextlib.contextmanager
def in_one_lane(folder: Path, place: Path) -> Iterator[Audited]:
    """A kernel that stores what the second of several sequences computes with a wrong bit."""
    system = _begun(folder, replace(WAY, prefix_caching=False))

    def damaged(plan: Plan) -> None:
        if len(plan.work) > 1:
            running = system.core.state.scheduling.running.get(plan.work[1].slot)
            if running is not None and running.table is not None and running.table.blocks:
                flip(system.copies._device, running.table.blocks[0])

    system.damaged = damaged
    yield system


@contextlib.contextmanager
def with_another_adapter(folder: Path, place: Path) -> Iterator[Audited]:
    """A worker that takes another adapter's factors until the answer is there."""
    system = Audited(folder, replace(WAY, max_loras=2, prefix_caching=False))
    right, wrong = (_adapter(folder, place / name) for name in ("right", "wrong"))
    for system.adapter in (wrong, right):
        system.ask(QUESTION)
        system.settle()

    def taken(plan: Plan) -> Plan:
        if system.audits.num_held:
            return plan
        admitted = [msgspec.structs.replace(new, adapter=wrong.digest) for new in plan.admitted]
        return msgspec.structs.replace(plan, admitted=admitted)

    system.taken = taken
    yield system


def _adapter(folder: Path, place: Path) -> AdapterFile:
    hidden = load_manifest(folder).decoder.hidden_size
    name = "model.layers.0.self_attn.o_proj"
    seed = 1 if place.name == "right" else 2
    write_peft(place, random_factors({name: (hidden, hidden)}, rank=4, seed=seed, size=0.5))
    return AdapterFile(read_adapter(place)[0], str(place))


def _close(system: Audited) -> None:
    if system.loaded is not None:
        system.loaded.runner.close()


FAULTS = (
    Fault("a bit of a block in the pool", "prefix_cache", in_pool),
    Fault("a bit of a block in host memory", "host", in_host_memory),
    Fault("a bit on the way to disk, before the checksum", "disk", on_the_way_to_disk),
    Fault("a bit of a block read, after the checksum", "disk", in_transit),
    Fault("another adapter's factors", "none", with_another_adapter),
    Fault("a kernel in one of two lanes", "none", in_one_lane),
)
