"""What the engine core costs, without sockets or a worker: `python loadtest/engine_core.py --help`.

Time to plan a step and to apply its result with many requests running, for pools of several sizes;
messages and bytes that a step sends to the worker; memory of the pool.  Every step is a decode of
all running requests, as in steady state.  Answers are made up outside the timed part.  Results go
to results/engine_core.json, .md and .png.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

import msgspec  # noqa: E402

from loadtest.report.facts import machine_line, now, run_facts  # noqa: E402
from penstock.bench.load.report import markdown_table  # noqa: E402
from penstock.config.settings import (  # noqa: E402
    CacheSettings,
    EngineConfig,
    ModelSettings,
    SchedulerSettings,
)
from penstock.model_config import (  # noqa: E402
    GenerationDefaults,
    ModelConfig,
    PreparedModel,
    WeightFiles,
)
from penstock.protocol import PROTOCOL_VERSIONS  # noqa: E402
from penstock.protocol.common import Stopping, TokenSampling  # noqa: E402
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit  # noqa: E402
from penstock.protocol.from_worker import Ready, Result, SlotResult, WorkerHello  # noqa: E402
from penstock.protocol.to_worker import Plan  # noqa: E402
from penstock_engine.core import EngineCore  # noqa: E402
from penstock_engine.effects import Effects  # noqa: E402
from penstock_engine.facts import EngineFacts  # noqa: E402
from penstock_engine.kv.cache import KVCache  # noqa: E402
from penstock_engine.kv.keys import root_key  # noqa: E402

PROGRAM = "loadtest/engine_core.py"
FRONTEND, WORKER = b"f" * 16, b"w" * 16
PROMPT_TOKENS = 32
BLOCK_SIZE = 16
HOLDERS = 200
"""Sequences that hold blocks while the pool's operations are timed, of HELD blocks each."""
HELD = 4


@dataclass
class Steps:
    """Milliseconds of each step's plan (core.step) and apply (core.worker_received); messages and
    bytes to the worker in each."""

    plans: list[float]
    applies: list[float]
    messages: list[int]
    sizes: list[int]


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--running", type=int, default=256, help="requests that run at once")
    parser.add_argument("--steps", type=int, default=300, help="steps to time for each pool size")
    parser.add_argument(
        "--blocks", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--output", type=Path, default=ROOT / "loadtest" / "results")
    arguments = parser.parse_args()
    started = now()
    rows: list[dict[str, Any]] = []
    for blocks in arguments.blocks:
        steps = measure(blocks, arguments.running, arguments.steps)
        rows.append({"blocks": blocks, **step_figures(steps), **pool_figures(blocks)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    facts = run_facts(PROGRAM, sys.argv[1:], started)
    document = {**facts, "running": arguments.running, "rows": rows}
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "engine_core.json").write_text(json.dumps(document, indent=1) + "\n")
    text = report(facts, arguments.running, rows)
    (arguments.output / "engine_core.md").write_text(text)
    draw(rows, arguments.output / "engine_core.png")
    print(text)


def step_figures(steps: Steps) -> dict[str, float]:
    both = sorted(a + b for a, b in zip(steps.plans, steps.applies, strict=True))
    return {
        "plan_ms": statistics.median(steps.plans),
        "apply_ms": statistics.median(steps.applies),
        "both_ms": statistics.median(both),
        "both_p99_ms": both[int(0.99 * len(both))],
        "messages": statistics.mean(steps.messages),
        "bytes": statistics.mean(steps.sizes),
    }


def pool_figures(blocks: int) -> dict[str, float]:
    """Microseconds a block of the pool's operations, and bytes a block of its books."""
    tracemalloc.start()
    cache = KVCache(blocks, BLOCK_SIZE)
    empty, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    keys = [root_key(str(number)) for number in range(HOLDERS * HELD)]
    tables: deque[tuple[list[int], list[bytes]]] = deque()
    for holder in range(HOLDERS):
        own = keys[HELD * holder : HELD * (holder + 1)]
        tables.append((cache.take(HELD), own))
        cache.publish(*tables[-1])
    spent: dict[str, list[float]] = {"hit": [], "free": [], "evict": []}
    for _ in range(200):
        blocks_of_one, own = tables.popleft()
        cache.release(blocks_of_one)
        spent["hit"].append(_timed(cache.claim, own)[0])
        spent["free"].append(_timed(cache.release, blocks_of_one)[0])
        took, taken = _timed(cache.take, HELD)
        spent["evict"].append(took)
        tables.append((taken, own))
    figures = {f"{name}_us": statistics.median(times) / HELD for name, times in spent.items()}
    return {**figures, "bytes_per_block": empty / blocks}


def _timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Microseconds, and what it gave."""
    begun = time.perf_counter()
    given = work(*arguments)
    return 1e6 * (time.perf_counter() - begun), given


def report(facts: dict[str, Any], running: int, rows: list[dict[str, Any]]) -> str:
    steps = [
        [
            f"{r['blocks']:,}",
            *(f"{r[k]:.3f}" for k in ("plan_ms", "apply_ms", "both_ms", "both_p99_ms")),
            f"{r['messages']:.1f}",
            f"{r['bytes']:,.0f}",
        ]
        for r in rows
    ]
    costs = ("hit_us", "free_us", "evict_us", "bytes_per_block")
    pools = [[f"{r['blocks']:,}", *(f"{r[k]:.2f}" for k in costs)] for r in rows]
    headings = ["KV blocks", "plan p50, ms", "apply p50, ms", "both p50, ms", "both p99, ms"]
    return (
        f"{machine_line(facts)}\n\n{running} running requests, decode steps:\n\n"
        + markdown_table([*headings, "messages a step", "bytes a step"], steps)
        + "\nThe pool's own operations, a block each:\n\n"
        + markdown_table(["KV blocks", "hit, us", "free, us", "take, us", "memory, bytes"], pools)
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    sizes = [row["blocks"] for row in rows]
    for name, label in (("plan_ms", "plan"), ("apply_ms", "apply"), ("both_ms", "both")):
        left.plot(sizes, [row[name] for row in rows], marker="o", label=label)
    for name, label in (("hit_us", "hit"), ("free_us", "free"), ("evict_us", "take")):
        right.plot(sizes, [row[name] for row in rows], marker="o", label=label)
    for axes, title, unit in ((left, "a step", "ms"), (right, "a block of the pool", "us")):
        axes.set(xscale="log", xlabel="KV blocks", ylabel=unit, title=title, ylim=(0, None))
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def measure(blocks: int, running: int, steps: int) -> Steps:
    """A small pool holds only short outputs, so several rounds, each with a new core, may be
    needed."""
    output = min(steps + 2, blocks // running * BLOCK_SIZE - PROMPT_TOKENS)
    if output < 6:
        raise SystemExit(f"{blocks} blocks are too few for {running} requests")
    found = Steps([], [], [], [])
    while len(found.plans) < steps:
        core = started_core(blocks, running, output)
        waiting = deque(plans_of(core.step(0.0)))
        gc.collect()
        gc.freeze()
        for number in range(output - 4):
            result = answer(waiting.popleft())
            before = time.perf_counter()
            core.worker_received(WORKER, result, 0.0)
            between = time.perf_counter()
            effects = core.step(0.0)
            after = time.perf_counter()
            plans = plans_of(effects)
            waiting += plans
            if number:  # The first is the prompts'.
                found.applies.append(1000 * (between - before))
                found.plans.append(1000 * (after - between))
                found.messages.append(len(plans))
                found.sizes.append(sum(len(msgspec.msgpack.encode(plan)) for plan in plans))
        gc.unfreeze()
    return found


def started_core(blocks: int, running: int, output: int) -> EngineCore:
    core = EngineCore(facts(running))
    core.frontend_opened(FRONTEND, Hello(list(PROTOCOL_VERSIONS), "benchmark", 0), 0.0)
    core.worker_opened(WORKER, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), 0.0)
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
                list(range(3 + number, 3 + number + PROMPT_TOKENS)),
                [OpenSequence(0)],
                TokenSampling(seed=number, temperature=0.0),
                Stopping(max_tokens=output),
            ),
            0.0,
        )
    return core


def plans_of(effects: Effects) -> list[Plan]:
    return [message for _, message, _ in effects.to_workers if isinstance(message, Plan)]


def answer(plan: Plan) -> Result:
    """A token for each slot: every prompt is computed in one chunk here."""
    return Result(plan.step, [SlotResult(work.slot, 5) for work in plan.work])


def facts(running: int) -> EngineFacts:
    model = PreparedModel(
        format_version=2,
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
