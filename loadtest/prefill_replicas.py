"""Sixteen GPUs that compute prompts in chunks between their streams' tokens, against as many of
which some compute long prompts for the others.

    python -m loadtest.prefill_replicas            # some minutes; in virtual time
    python -m loadtest.prefill_replicas --requests 500 --output FOLDER

The simulator runs the production engine core and the gateways' routing. The costs are
estimates: of a step for a model of 8 billion parameters on one H100, of a block for 25 GB/s into
each machine. Engine cores exchange blocks between CPUs only so far: this is what it would be
worth on GPUs.
"""

from __future__ import annotations

import itertools
import logging
import sys
from typing import Any

import msgspec

from loadtest.report import Document, Flags, Measurement, machine_line, say, table
from penstock.config.settings import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from penstock_engine.simulate.commands import Synthetic, synthetic
from penstock_engine.simulate.cost import StepCost
from penstock_engine.simulate.report import report_of
from penstock_engine.simulate.simulation import Simulation, SimulationOptions

GPUS = 16
TRAFFIC = Synthetic(
    prompt=4000, prompt_sigma=0.8, max_prompt=30_000, output=250, output_sigma=0.6, max_output=1500
)
RATES = (20.0, 40.0, 55.0)
"""Requests a second, of all replicas together."""
LAYOUTS = ((0, 8192), (0, 1024), (8, 8192), (11, 8192))
"""(replicas for prompts, the most tokens of a step): with few, prompts come in small chunks."""
BLOCK = 64
POOL_TOKENS, KEPT_TOKENS = 400_000, 500_000
TOKEN_BYTES, BYTES_PER_SECOND = 131_072, 25e9
COST = StepCost(base_ms=8.0, token_ms=0.025, sequence_ms=0.05, context_ms=1.2e-6)
CONFIG = EngineConfig(
    model=ModelSettings(max_model_len=32_768),
    cache=CacheSettings(num_kv_blocks=POOL_TOKENS // BLOCK, kv_block_size=BLOCK),
    scheduler=SchedulerSettings(max_num_seqs=256, max_waiting_requests=10_000),
)
SLO_TTFT, SLO_ITL = 2.0, 0.025
COLUMNS = {
    "requests a second": "{rate:g}",
    "GPUs for prompts + answers": "{layout}",
    "tokens of a step, at most": "{budget:,}",
    "first token, s: p50": "{ttft[p50]:.2f}",
    "p99": "{ttft[p99]:.2f}",
    "between tokens, ms: p50": "{itl[p50]:.1f}",
    "p90": "{itl[p90]:.1f}",
    "p99 ": "{itl[p99]:.1f}",
    "both bounds met": "{met:.1%}",
    "blocks fetched of those to be": "{fetched:.1%}",
}

Row = dict[str, Any]


def measure(flags: Flags) -> Document:
    logging.getLogger("penstock_engine").setLevel(logging.CRITICAL)
    rows = []
    for rate, (prefill, budget) in itertools.product(RATES, LAYOUTS):
        traffic = msgspec.structs.replace(TRAFFIC, rate=rate, requests=flags.requests)
        rows.append(run(traffic, prefill, budget))
        say(table(COLUMNS, rows[-1:]))
    return {
        "traffic": msgspec.to_builtins(TRAFFIC),
        "requests": flags.requests,
        "cost": msgspec.to_builtins(COST),
        "rows": rows,
    }


def run(traffic: Synthetic, prefill: int, budget: int) -> Row:
    """One simulation. Times of first tokens are seconds, those between tokens milliseconds."""
    options = SimulationOptions(
        cost=COST,
        replicas=GPUS,
        routing="least-loaded",
        slo_ttft=SLO_TTFT,
        slo_itl=SLO_ITL,
        check_every=50_000,
        prefill_replicas=prefill,
        transfer_blocks=KEPT_TOKENS // BLOCK,
        transfer_block=BLOCK * TOKEN_BYTES / BYTES_PER_SECOND,
    )
    scheduler = msgspec.structs.replace(CONFIG.scheduler, max_num_batched_tokens=budget)
    simulation = Simulation(msgspec.structs.replace(CONFIG, scheduler=scheduler), options)
    simulation.run(synthetic(traffic))
    report = report_of(simulation)
    prompts = [request.num_prompt for request in synthetic(traffic)]
    ahead = [length for length in prompts if length >= options.prefill_tokens] if prefill else []
    return {
        "rate": traffic.rate,
        "budget": budget,
        "layout": f"{prefill} + {GPUS - prefill}" if prefill else f"{GPUS} for both",
        "completed": report.completed,
        "ttft": {name: value / 1000 for name, value in _latency(report.ttft).items()},
        "itl": _latency(report.itl),
        "met": report.slo_attainment,
        "computed_ahead": report.computed_ahead,
        "fetched": report.disk_blocks_read / (sum((n - 1) // BLOCK for n in ahead) or 1),
        "output_tokens_per_second": report.output_tokens_per_second,
        "digest": report.digest,
    }


def _latency(found: Any) -> dict[str, float]:
    return {name: getattr(found, name) or 0.0 for name in ("mean", "p50", "p90", "p99")}


def markdown(document: Document) -> str:
    traffic = document["traffic"]
    return (
        f"{machine_line(document)}\n\n"
        f"{document['requests']:,} requests at each rate; prompts of {traffic['prompt']:,} tokens "
        f"in the median ({traffic['max_prompt']:,} at most), answers of {traffic['output']:,}. "
        f"Bounds: {SLO_TTFT:g} s to the first token, {1000 * SLO_ITL:g} ms between tokens on "
        "average. Virtual time; the costs of steps and blocks are estimated, not measured.\n\n"
        f"{table(COLUMNS, document['rows'])}\n"
    )


FLAGS = {"--requests": (1500, "at each rate")}
COMMAND = Measurement("prefill_replicas", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
