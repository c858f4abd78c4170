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
from pathlib import Path

import msgspec

from loadtest.report.facts import machine_line
from loadtest.report.files import Report
from penstock.config.settings import CacheSettings, EngineConfig, SchedulerSettings
from penstock_engine.simulate.cost import StepCost
from penstock_engine.simulate.report import SimulationReport, as_text, report_of
from penstock_engine.simulate.simulation import Simulation, SimulationOptions
from penstock_engine.simulate.synthetic import Synthetic, synthetic

PROGRAM = "loadtest/long_simulation.py"
HOURS = 1000.0
REQUESTS = 10_000_000
TRAFFIC = Synthetic(
    rate=REQUESTS / HOURS / 3600,
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
)
CONFIG = EngineConfig(
    cache=CacheSettings(num_kv_blocks=48),  # Of 16 tokens: the peaks need more.
    scheduler=SchedulerSettings(max_num_seqs=32, max_num_batched_tokens=256),
)
OPTIONS = SimulationOptions(
    cost=StepCost(base_ms=130.0, token_ms=1.0, sequence_ms=1.0, context_ms=0.001),
    slo_ttft=5.0,
    slo_itl=0.25,
    check_every=10_000,
    deaths_per_hour=2.0,
)


def main(arguments: list[str] | None = None) -> int:
    """0; 1 where two runs differ or a request was lost. Broken books raise."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.long_simulation")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of 1,000 hours and 10 million requests"
    )
    parser.add_argument("--twice", action="store_true", help="run it again, compare the digests")
    parser.add_argument("--output", type=Path, help="write all figures there, as JSON")
    flags = parser.parse_args(arguments)
    logging.getLogger("penstock_engine").setLevel(logging.CRITICAL)
    written = None if flags.output is None else Report.at(flags.output, PROGRAM, arguments)
    reports = [run(flags.share) for _ in range(1 + flags.twice)]
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    digests = [one.digest for one in reports]
    text = f"{as_text(reports[0])}\npeak memory {kib / 1024:,.0f} MiB; digests {digests}\n"
    if written is None:
        print(text)
    else:
        document = {"runs": msgspec.to_builtins(reports), "peak_kib": kib}
        written.finish(document, lambda facts: f"{machine_line(facts)}\n\n{text}")
    # Each has one end: one that was in flight at two deaths in a row is failed on purpose.
    whole = all(one.requests == sum(one.finishes.values()) + one.rejected for one in reports)
    return 0 if whole and len(set(digests)) == 1 else 1


def run(share: float) -> SimulationReport:
    """So much of all requests."""
    simulation = Simulation(CONFIG, OPTIONS)
    requests = max(1, round(share * REQUESTS))
    simulation.run(synthetic(msgspec.structs.replace(TRAFFIC, requests=requests)))
    return report_of(simulation)


if __name__ == "__main__":
    sys.exit(main())
