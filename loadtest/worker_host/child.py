"""Measures one checkout's worker, in a process of its own: `python child.py STEPS < cases`.

Reads a JSON list of cases, writes a line of JSON for each.  The paths of the checkout's packages
are in PYTHONPATH.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from loadtest.worker_host.cases import BLOCK, LONGEST, VOCAB, Case, blocks_of, plans
from loadtest.worker_host.stand_ins import HIDDEN, Launches, StandInModel, StandInQueue
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan, Setup, ToWorker
from penstock_kernels.triton.tiles import attention_choice
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.batch.block_copies import NO_COPIES
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.device.memory import memory_of
from penstock_worker.engine_session import Activity, Heard
from penstock_worker.forward.buckets import buckets_of
from penstock_worker.forward.decode_inputs import DecodeInputs
from penstock_worker.forward.device_step import HostStep
from penstock_worker.forward.mixed_buckets import MixedInputs
from penstock_worker.forward.queued import TritonForward
from penstock_worker.forward.uploads import Uploads
from penstock_worker.machine.gc_tuning import keep
from penstock_worker.sampler.device import DeviceSampler, DeviceSamples
from penstock_worker.sampler.queued import SamplerMemory
from penstock_worker.steps import generate, launch
from penstock_worker.steps.generate import Generate
from penstock_worker.steps.in_flight import StepsInFlight
from penstock_worker.steps.runner import StepRunner
from testing.model_configs import llama_config

WARM, COUNTED = 40, 16
CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
STEP_TOKENS = 2048
"""A step's budget, the default."""

WATCHED = (
    (Slots, "apply", "slots"),
    (generate, "prepare_inputs", "gather"),
    (HostStep, "on_device", "layout"),
    (DecodeInputs, "write", "layout"),
    (MixedInputs, "write", "layout"),
    (Uploads, "send", "upload"),
    (Uploads, "fill", "upload"),
    (Launches, "replay", "replay"),
    (DeviceSampler, "launch", "sampler"),
    (StepRunner, "begin", "begin, rest"),
    (DeviceSamples, "sampled", "collect"),
    (launch.Launch, "settle", "settle"),
    (StepRunner, "_settle", "result, rest"),
)
"""What of the worker is which part. A part's time is without those inside of it."""
PARTS = ("plan decode", *dict.fromkeys(part for *_, part in WATCHED), "encode")


class Clock:
    """seconds: by part, since the last `take`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._inside: list[float] = []

    def call(self, part: str, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        begun = time.thread_time()
        self._inside.append(0.0)
        try:
            return function(*arguments, **more)
        finally:
            spent = time.thread_time() - begun
            self.seconds[part] += spent - self._inside.pop()
            if self._inside:
                self._inside[-1] += spent

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return taken

    def watch(self, owner: Any, name: str, part: str) -> None:
        """What `owner` calls `name` is of this part."""
        inner = getattr(owner, name)

        def timed(*arguments: Any, **more: Any) -> Any:
            return self.call(part, inner, *arguments, **more)

        setattr(owner, name, timed)


class Worker:
    """The worker's main thread, without a session. sent: the last encoded result."""

    def __init__(self, case: Case, clock: Clock, launches: Launches) -> None:
        self.runner = make_runner(case, launches)
        self.sent = b""
        self._clock = clock
        self._inbox: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        session: Any = SimpleNamespace(inbox=self._inbox, activity=Activity())
        self._steps = StepsInFlight(session, self._tell)
        self._decode = msgspec.msgpack.Decoder(ToWorker).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def step(self, encoded: bytes) -> None:
        """A plan comes; the result of the one before the last leaves."""
        plan = self._clock.call("plan decode", self._decode, encoded)
        self._inbox.put(Heard(0, plan))
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
    slots, blocks = case.slots, blocks_of(case)
    config = llama_config(
        architecture="llama",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_layers=32,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position=LONGEST,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
    )
    shape = CacheShape(1, HEADS, KV_HEADS, HEAD_DIM, BLOCK, torch.bfloat16)
    attention = TritonAttention(shape, blocks, CPU, lambda heads: attention_choice(heads.size))
    model: Any = StandInModel(config, slots, launches)
    forward = TritonForward(model, attention, CPU, slots=slots, memory=memory_of(CPU))
    forward.use_graphs(buckets_of(setup(case), config), launches, torch.float32)
    bounds = SlotBounds(slots, blocks, BLOCK, VOCAB, LONGEST)
    queue: Any = StandInQueue()
    sampler, own = DeviceSampler(CPU, VOCAB, slots), Slots(bounds)
    kind = Generate(
        queue,
        forward,
        sampler,
        own,
        copies=NO_COPIES,
        newest=forward.newest,
        features=[SamplerMemory(sampler, own)],
    )
    return StepRunner(queue, kind)


def setup(case: Case) -> Setup:
    """What a served worker would be told, so that it has that one's graphs."""
    return Setup(
        version=PROTOCOL_VERSIONS[0],
        model_dir="",
        dtype="bfloat16",
        attention_backend="triton",
        threads=None,
        block_size=BLOCK,
        num_kv_blocks=blocks_of(case),
        kv_memory_fraction=0.5,
        max_num_seqs=case.slots,
        max_num_batched_tokens=STEP_TOKENS,
        max_model_len=LONGEST,
    )


def measure(case: Case, steps: int, clock: Clock) -> dict[str, Any]:
    launches = Launches()
    with launches.instead():
        worker = Worker(case, clock, launches)
        coming = plans(case)
        for plan in islice(coming, WARM):
            worker.step(plan)
        with launches.counted():
            for plan in islice(coming, COUNTED):
                worker.step(plan)
        keep()
        clock.take()
        totals, parts = [], []
        for plan in islice(coming, steps):
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
    for owner, name, part in WATCHED:
        clock.watch(owner, name, part)
    for wanted in json.load(sys.stdin):
        print(json.dumps(measure(Case(**wanted), int(sys.argv[1]), clock)), flush=True)


if __name__ == "__main__":
    main()
