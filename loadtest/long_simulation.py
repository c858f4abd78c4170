"""A long simulated life of the engine core, its books proved on the way: 1,000 hours, 10 million
requests.

    python -m loadtest.long_simulation                       # all of it
    python -m loadtest.long_simulation --share 0.001 --twice # a thousandth, twice: equal digests

Bursty traffic of several tenants on a pool that is too small for its peaks, so that sequences are
preempted, and workers that die now and then.  The same seed gives the same digest.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from loadtest.report.facts import machine_line
from loadtest.report.files import Report
from penstock.config.settings import CacheSettings, EngineConfig, SchedulerSettings
from penstock_engine.simulate.cost import StepCost
from penstock_engine.simulate.metrics import Metrics
from penstock_engine.simulate.report import SimulationReport, as_text, report_of
from penstock_engine.simulate.simulation import Simulation, SimulationOptions
from penstock_engine.simulate.synthetic import Synthetic, synthetic

PROGRAM = "loadtest/long_simulation.py"
HOURS = 1000.0
REQUESTS = 10_000_000
COST = StepCost(base_ms=130.0, token_ms=1.0, sequence_ms=1.0, context_ms=0.001)
BLOCKS = 48
"""Of 16 tokens: the peaks need more."""


def main(arguments: list[str] | None = None) -> int:
    """0; 1 where two runs differ or a request was lost. Broken books raise."""
    options = build_parser().parse_args(arguments)
    logging.getLogger("penstock_engine").setLevel(logging.CRITICAL)
    written = None
    if options.output is not None:
        written = Report.at(options.output, PROGRAM, arguments)
    reports = [run(options) for _ in range(2 if options.twice else 1)]
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = (
        f"{as_text(reports[0])}\n"
        f"peak memory {kib / 1024:,.0f} MiB; digests {[one.digest for one in reports]}\n"
    )
    if written is None:
        print(text)
    else:
        document = {"runs": [msgspec.to_builtins(one) for one in reports], "peak_kib": kib}
        written.finish(document, lambda facts: f"{machine_line(facts)}\n\n{text}")
    # Each has one end: one that was in flight at two deaths in a row is failed on purpose.
    whole = all(one.requests == sum(one.finishes.values()) + one.rejected for one in reports)
    return 0 if whole and len({one.digest for one in reports}) == 1 else 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.long_simulation")
    add = parser.add_argument
    add("--share", type=float, default=1.0, help="of 1,000 hours and 10 million requests")
    add("--seed", type=int, default=0)
    add("--check-every", type=int, default=10_000, help="events between two proofs of the books")
    add("--twice", action="store_true", help="run it again and compare the digests")
    add("--output", type=Path, help="write all figures there, as JSON")
    add("--progress", action="store_true", help="tell on stderr how far it is")
    return parser


def run(options: argparse.Namespace) -> SimulationReport:
    requests = max(1, round(options.share * REQUESTS))
    trace = Synthetic(
        rate=REQUESTS / HOURS / 3600,
        requests=requests,
        prompt=32,
        prompt_sigma=0.8,
        max_prompt=384,
        output=6,
        output_sigma=0.7,
        max_output=64,
        shared=0.3,
        groups=16,
        prefix=64,
        tenants="large:6,small:3,tiny:1",
        burst=0.7,
        period=1800.0,
        seed=options.seed,
    )
    config = EngineConfig(
        cache=CacheSettings(num_kv_blocks=BLOCKS),
        scheduler=SchedulerSettings(max_num_seqs=32, max_num_batched_tokens=256),
    )
    simulation = Simulation(
        config,
        SimulationOptions(
            cost=COST,
            slo_ttft=5.0,
            slo_itl=0.25,
            check_every=options.check_every,
            deaths_per_hour=2.0,
            seed=options.seed,
        ),
    )
    simulation.run(synthetic(trace), _progress() if options.progress else None)
    return report_of(simulation)


def _progress() -> Any:
    begun = time.monotonic()

    def tell(at: float, metrics: Metrics) -> None:
        seconds = time.monotonic() - begun
        print(
            f"{at / 3600:,.1f} h, {metrics.submitted:,} requests, {seconds:,.0f} s",
            file=sys.stderr,
        )

    return tell


if __name__ == "__main__":
    sys.exit(main())
