"""How long the engine core takes to decide a step and to apply its result. No sockets, no worker.

    python loadtest/engine_core.py            # 256 running requests, 1,000 to 1,000,000 blocks
    python loadtest/engine_core.py --running 64 --steps 200

Every step is a decode of all running requests, as in steady state.  The answers are made up
outside the timed part.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import deque

from penstock.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from penstock.model_config import GenerationDefaults, ModelConfig, PreparedModel, WeightFiles
from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit
from penstock.protocol.from_worker import Ready, Result, SlotResult, WorkerHello
from penstock.protocol.to_worker import Plan
from penstock_engine.core import EngineCore
from penstock_engine.effects import Effects
from penstock_engine.facts import EngineFacts

FRONTEND, WORKER = b"f" * 16, b"w" * 16
PROMPT_TOKENS = 32
BLOCK_SIZE = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, default=256, help="requests that run at once")
    parser.add_argument("--steps", type=int, default=300, help="steps to time for each pool size")
    parser.add_argument(
        "--blocks", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--timeline", action="store_true", help="each request asks for its own")
    arguments = parser.parse_args()
    print(f"{arguments.running} running requests, {arguments.steps} decode steps, milliseconds")
    print("| KV blocks | plan p50 | apply p50 | plan + apply p50 | p99 |")
    print("|---:|---:|---:|---:|---:|")
    for blocks in arguments.blocks:
        plans, applies = measure(
            blocks, arguments.running, arguments.steps, timeline=arguments.timeline
        )
        both = sorted(a + b for a, b in zip(plans, applies, strict=True))
        print(
            f"| {blocks:,} | {statistics.median(plans):.3f} | {statistics.median(applies):.3f} "
            f"| {statistics.median(both):.3f} | {both[int(0.99 * len(both))]:.3f} |"
        )


def measure(
    blocks: int, running: int, steps: int, *, timeline: bool
) -> tuple[list[float], list[float]]:
    """Milliseconds of each step's plan (core.step) and apply (core.worker_received).

    A small pool holds only short outputs, so several rounds, each with a new core, may be needed.
    """
    output = min(steps + 2, blocks // running * BLOCK_SIZE - PROMPT_TOKENS)
    if output < 3:
        raise SystemExit(f"{blocks} blocks are too few for {running} requests")
    plans: list[float] = []
    applies: list[float] = []
    while len(plans) < steps:
        core = started_core(blocks, running, output, timeline)
        in_flight = deque(plans_of(core.step(0.0)))
        core.worker_received(WORKER, answer(in_flight.popleft()), 0.0)
        in_flight += plans_of(core.step(0.0))
        gc.collect()
        gc.freeze()
        for _ in range(output - 2):
            result = answer(in_flight.popleft())
            before = time.perf_counter()
            core.worker_received(WORKER, result, 0.0)
            between = time.perf_counter()
            effects = core.step(0.0)
            after = time.perf_counter()
            in_flight += plans_of(effects)
            applies.append(1000 * (between - before))
            plans.append(1000 * (after - between))
        gc.unfreeze()
    return plans, applies


def started_core(blocks: int, running: int, output: int, timeline: bool) -> EngineCore:
    core = EngineCore(facts(running))
    core.frontend_opened(FRONTEND, Hello([1], "benchmark", 0), 0.0)
    core.worker_opened(WORKER, WorkerHello([1], 0, 0), 0.0)
    core.worker_received(
        WORKER,
        Ready(num_kv_blocks=blocks, device="none", fingerprint="none", load_seconds=0.0),
        0.0,
    )
    for number in range(running):
        core.frontend_received(
            FRONTEND,
            Submit(
                number,
                f"request-{number}",
                list(range(3, 3 + PROMPT_TOKENS)),
                [OpenSequence(0)],
                TokenSampling(seed=number, temperature=0.0),
                Stopping(max_tokens=output),
                timeline=timeline,
            ),
            0.0,
        )
    return core


def plans_of(effects: Effects) -> list[Plan]:
    return [message for _, message, _ in effects.to_workers if isinstance(message, Plan)]


def answer(plan: Plan) -> Result:
    """A token for each slot: every prompt is computed in one chunk here."""
    return Result(plan.step, [SlotResult(work.slot, 5) for work in plan.work], 0.005)


def facts(running: int) -> EngineFacts:
    model = PreparedModel(
        format_version=1,
        name="benchmark",
        source="benchmark",
        config=ModelConfig(
            architecture="llama",
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            max_position=8192,
            rms_norm_eps=1e-5,
            rope_theta=100000.0,
        ),
        generation=GenerationDefaults(eos_token_ids=(2,)),
        weights=WeightFiles(format="gguf", files=(), dtype="Q4_1"),
        digest="0" * 64,
        has_chat_template=False,
    )
    config = EngineConfig(
        model=ModelSettings(model="benchmark"),
        cache=CacheSettings(kv_block_size=BLOCK_SIZE),
        scheduler=SchedulerSettings(
            max_num_seqs=running,
            max_num_batched_tokens=max(2048, running * PROMPT_TOKENS),
            max_waiting_requests=1_000_000,
            max_waiting_tokens=1_000_000_000,
        ),
    )
    return EngineFacts(
        config=config, model=model, folder="/", tokenizer=b"", template=b"", boot="", created=0
    )


if __name__ == "__main__":
    main()
