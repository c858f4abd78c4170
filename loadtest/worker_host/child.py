"""Measures one checkout's worker, in a process of its own: `python child.py STEPS < cases`.

Reads a JSON list of cases, writes a line of JSON for each.  The paths of the checkout's packages
are in PYTHONPATH.
"""

from __future__ import annotations

import gc
import json
import queue
import sys
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import torch

from loadtest.worker_host.cases import BLOCK, CONTEXT, VOCAB, Case, Plans
from loadtest.worker_host.parts import PARTS, Clock
from loadtest.worker_host.stand_ins import (
    HIDDEN,
    Launches,
    NoCopies,
    StandInModel,
    StandInQueue,
    StandInRecording,
)
from penstock.model_config import ModelConfig
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan, ToWorker
from penstock_kernels.triton.tiles import attention_choice
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.device.memory import memory_of
from penstock_worker.engine_session import Activity, Heard
from penstock_worker.forward.device_step import HostStep
from penstock_worker.forward.graphs import Buckets, DecodeGraphs
from penstock_worker.forward.queued import TritonForward
from penstock_worker.forward.uploads import Uploads
from penstock_worker.sampler import device as sampling
from penstock_worker.sampler.device import DeviceSampler
from penstock_worker.steps import generate, launch
from penstock_worker.steps.generate import Generate
from penstock_worker.steps.in_flight import StepsInFlight
from penstock_worker.steps.runner import StepRunner

WARM, COUNTED = 40, 16
CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128

try:
    from penstock_worker.forward.decode_inputs import DecodeInputs
except ImportError:
    DecodeInputs = None
try:
    from penstock_worker.machine.gc_tuning import keep
except ImportError:
    keep = gc.collect
LAYOUT = ((DecodeGraphs, "_padded"), (HostStep, "on_device"), (DecodeInputs, "write"))
"""In this version of the worker, and in those before it."""


@dataclass
class Session:
    """What StepsInFlight needs of a session."""

    inbox: queue.SimpleQueue[Heard]
    activity: Activity


class Worker:
    """The worker's main thread, without a session. sent: the last encoded result."""

    def __init__(self, case: Case, clock: Clock, launches: Launches) -> None:
        self.runner = make_runner(case, launches)
        self.sent = b""
        self._clock = clock
        self._session = Session(queue.SimpleQueue(), Activity())
        self._steps = StepsInFlight(self._session, self._tell)
        self._decode = msgspec.msgpack.Decoder(ToWorker).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def step(self, encoded: bytes) -> None:
        """A plan comes; the result of the one before the last leaves."""
        plan = self._clock.call("plan decode", self._decode, encoded)
        self._session.inbox.put(Heard(0, plan))
        heard = self._steps.hear()
        if heard is None or not isinstance(heard.message, Plan):
            raise RuntimeError("a step was done though nobody had waited for it")
        self._steps.begin(0, heard.message, self.runner)

    def _tell(self, session: int, plan: Plan, result: Result) -> None:
        errors = [each.error for each in result.slots if each.error is not None]
        if errors:
            raise RuntimeError(f"{len(errors)} slots failed: {errors[0]}")
        self.sent = self._clock.call("encode", self._encode, result)


def make_runner(case: Case, launches: Launches) -> StepRunner[Any]:
    slots, blocks = case.sequences, Plans(case).blocks
    config = ModelConfig(
        architecture="llama",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_layers=32,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position=8 * CONTEXT,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
    )
    shape = CacheShape(1, HEADS, KV_HEADS, HEAD_DIM, BLOCK, torch.bfloat16)
    attention = TritonAttention(shape, blocks, CPU, attention_choice(HEAD_DIM))
    model: Any = StandInModel(config, slots, launches)
    forward = TritonForward(model, attention, CPU, slots=slots, memory=memory_of(CPU))
    forward.use_graphs(Buckets(slots, 8 * CONTEXT, BLOCK), launches, torch.float32)
    bounds = SlotBounds(slots, blocks, BLOCK, VOCAB, 8 * CONTEXT)
    queue: Any = StandInQueue()
    kind = Generate(
        queue,
        forward,
        DeviceSampler(CPU, VOCAB, slots),
        Slots(bounds),
        copies=NoCopies(),
        newest=forward.newest,
    )
    return StepRunner(queue, kind)


def watch(clock: Clock) -> None:
    """The same for any version of the worker."""
    clock.watch(Slots, "apply", "slots")
    clock.watch(generate, "prepare_inputs", "gather")
    for owner, name in LAYOUT:
        if owner is not None:
            clock.watch(owner, name, "layout")
    for name in ("send", "fill"):
        clock.watch(Uploads, name, "upload")
    clock.watch(DeviceSampler, "launch", "sampler")
    clock.watch(StepRunner, "begin", "begin, rest")
    clock.watch(StepRunner, "_settle", "result, rest")
    clock.watch(sampling.DeviceSamples, "sampled", "collect")
    clock.watch(launch.Launch, "settle", "settle")


class TimedLaunches(Launches):
    """Whose replays are a part."""

    clock: Clock

    def capture(self, work: Any) -> Any:
        replay, clock = super().capture(work), self.clock
        return StandInRecording(lambda: clock.call("replay", replay))


def measure(case: Case, steps: int, clock: Clock) -> dict[str, Any]:
    launches = TimedLaunches()
    launches.clock = clock
    with launches.instead(), launches.sent():
        worker = Worker(case, clock, launches)
        plans = iter(Plans(case))
        for plan in islice(plans, WARM):
            worker.step(plan)
        with launches.counted():
            for plan in islice(plans, COUNTED):
                worker.step(plan)
        keep()
        clock.take()
        totals, parts = [], []
        for plan in islice(plans, steps):
            begun = time.thread_time()
            worker.step(plan)
            totals.append(time.thread_time() - begun)
            parts.append(clock.take())
    return {
        "case": case.name,
        "total": totals,
        "parts": {part: [each[part] for each in parts] for part in PARTS},
        "kernels": {name: count / COUNTED for name, count in launches.kernels.items()},
        "operations": {name: count / COUNTED for name, count in launches.operations.items()},
        "replays": launches.replays / COUNTED,
    }


def main() -> None:
    torch.set_num_threads(1)
    clock = Clock()
    watch(clock)
    for wanted in json.load(sys.stdin):
        print(json.dumps(measure(Case(**wanted), int(sys.argv[1]), clock)), flush=True)


if __name__ == "__main__":
    main()
