"""Agents' sessions beside other traffic: what is found of their prompts, by what the engine core is
told of them, with a host tier and without.

    python -m loadtest.agents                      # some 15 minutes; in virtual time
    python -m loadtest.agents --sessions 3 --output FOLDER

The simulator runs the production engine core. The step's cost is estimated for a model of 8 billion
parameters on one H100; the trace has the shape that others have measured of coding agents.
"""

from __future__ import annotations

import itertools
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec

from loadtest.report import Document, Flags, Measurement, chart, machine_line, say, table
from penstock.config.settings import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from penstock_engine.simulate.agents import AgentTraffic, agents, seen_before
from penstock_engine.simulate.cost import StepCost
from penstock_engine.simulate.prompts import Told
from penstock_engine.simulate.report import latency, report_of
from penstock_engine.simulate.simulation import Simulation, SimulationOptions

TRAFFIC = AgentTraffic(others=3.0)
RATES = (0.006, 0.012)
"""Sessions that begin per second: about as many are live as there is room for, and twice that."""
BLOCK = 128
"""Tokens of a KV block: of this many, a prompt of 142,000 has a thousand."""
POOL_TOKENS, HOST_TOKENS = 1_280_000, 2_560_000
CONFIG = EngineConfig(
    model=ModelSettings(max_model_len=500_000),
    cache=CacheSettings(
        num_kv_blocks=POOL_TOKENS // BLOCK, kv_block_size=BLOCK, session_kv_share=0.8
    ),
    scheduler=SchedulerSettings(max_num_seqs=64, max_num_batched_tokens=8192),
)
COST = StepCost(base_ms=8.0, token_ms=0.025, sequence_ms=0.05, context_ms=1.2e-6, copy_ms=0.65)
TOLD: tuple[Told, ...] = ("nothing", "sessions", "hints")
COLUMNS = {
    "sessions an hour": "{per_hour:.0f}",
    "told of sessions": "{told}",
    "host tier": "{host}",
    "of agents' prompt tokens not computed": "{found:.1%}",
    "seen before": "{seen:.1%}",
    "turn's first token, s: p50": "{ttft[p50]:.2f}",
    "p90": "{ttft[p90]:.2f}",
    "p99": "{ttft[p99]:.2f}",
    "others' p50": "{others[p50]:.2f}",
    "p99 ": "{others[p99]:.2f}",
    "blocks brought back": "{swapped_in:,}",
    "ahead": "{prefetched:,}",
}

Row = dict[str, Any]


def measure(flags: Flags) -> Document:
    logging.getLogger("penstock_engine").setLevel(logging.CRITICAL)
    traffic = msgspec.structs.replace(TRAFFIC, sessions=flags.sessions)
    rows = []
    for rate, host in itertools.product(RATES, (0, HOST_TOKENS // BLOCK)):
        for told in TOLD:
            rows.append(run(msgspec.structs.replace(traffic, rate=rate), told, host))
            say(table(COLUMNS, rows[-1:]))
    return {
        "traffic": msgspec.to_builtins(traffic),
        "cost": msgspec.to_builtins(COST),
        "pool_tokens": POOL_TOKENS,
        "block_size": BLOCK,
        "rows": rows,
    }


def run(traffic: AgentTraffic, told: Told, host_blocks: int) -> Row:
    """One simulation. Times are seconds; `curve` has times, and of each the share of turns whose
    first token came within it."""
    options = SimulationOptions(
        cost=COST, told=told, host_blocks=host_blocks, check_every=50_000, slo_ttft=2.0
    )
    simulation = Simulation(CONFIG, options)
    simulation.run(agents(traffic))
    report, tenants = report_of(simulation), simulation.metrics.tenants
    mine = tenants["agents"]
    points = mine.ttft.curve()
    return {
        "per_hour": 3600 * traffic.rate,
        "told": told,
        "host": f"{host_blocks * BLOCK / 1e6:.1f} M tokens" if host_blocks else "none",
        "found": mine.cached_tokens / mine.prompt_tokens,
        "seen": seen_before(list(agents(traffic))),
        "turns": mine.completed,
        "ttft": _seconds(latency(mine.ttft)),
        "others": _seconds(latency(tenants["others"].ttft)),
        "curve": {
            "seconds": [float(f"{at:.4g}") for at, _ in points],
            "share": [round(share, 4) for _, share in points],
        },
        "preemptions": report.preemptions,
        "swapped_in": report.swapped_in,
        "prefetched": report.prefetched,
        "digest": report.digest,
    }


def _seconds(found: Any) -> dict[str, float]:
    return {name: (getattr(found, name) or 0.0) / 1000 for name in ("mean", "p50", "p90", "p99")}


def markdown(document: Document) -> str:
    traffic = document["traffic"]
    return (
        f"{machine_line(document)}\n\n"
        f"{traffic['sessions']} sessions ({document['rows'][0]['turns']:,} turns) beside "
        f"{traffic['others']:g} other requests a second, of {traffic['other_prompt']:,} tokens in "
        f"the median, in a pool of {document['pool_tokens']:,} tokens. Virtual time; the cost of a "
        "step is estimated, not measured.\n\n"
        f"{table(COLUMNS, document['rows'])}\n"
    )


def draw(path: Path, document: Document) -> None:
    kinds = list(dict.fromkeys((row["per_hour"], row["host"]) for row in document["rows"]))
    with chart(path, len(kinds), size=(4 * len(kinds), 3.6), sharey=True) as panels:
        for panel, kind in zip(panels, kinds, strict=True):
            for row in document["rows"]:
                if (row["per_hour"], row["host"]) == kind:
                    percent = [100 * share for share in row["curve"]["share"]]
                    panel.step(row["curve"]["seconds"], percent, label=f"told {row['told']}")
            title = f"{kind[0]:.0f} sessions an hour, host tier: {kind[1]}"
            panel.set(title=title, xscale="log", xlabel="s to a turn's first token, at most")
            panel.grid(alpha=0.3)
        panels[0].set_ylabel("% of turns")
        panels[0].legend()


FLAGS = {"--sessions": (14, "of the trace")}
COMMAND = Measurement("agents", __doc__, measure, markdown, FLAGS, draw=draw)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
