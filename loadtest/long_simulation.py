"""A long simulated life of the engine core, its books proved on the way: 1,000 hours, 10 million
requests.

    python -m loadtest.long_simulation                       # all of it
    python -m loadtest.long_simulation --share 0.001 --twice # a thousandth, twice: equal digests

Bursty traffic of several tenants on a pool that is too small for its peaks, so that sequences are
preempted, and workers that die now and then.  The same seed gives the same digest.
"""

from __future__ import annotations

import logging
import resource
import sys

import msgspec

from loadtest.report import Document, Flags, Measurement, machine_line
from penstock.config.settings import CacheSettings, EngineConfig, SchedulerSettings
from penstock_engine.simulate.commands import Synthetic, synthetic
from penstock_engine.simulate.cost import StepCost
from penstock_engine.simulate.report import SimulationReport, as_text, report_of
from penstock_engine.simulate.simulation import Simulation, SimulationOptions

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


def measure(flags: Flags) -> Document:
    """Broken books raise."""
    logging.getLogger("penstock_engine").setLevel(logging.CRITICAL)
    reports = [run(flags.share) for _ in range(1 + flags.twice)]
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"runs": msgspec.to_builtins(reports), "peak_kib": kib}


def run(share: float) -> SimulationReport:
    """So much of all requests."""
    simulation = Simulation(CONFIG, OPTIONS)
    requests = max(1, round(share * REQUESTS))
    simulation.run(synthetic(msgspec.structs.replace(TRAFFIC, requests=requests)))
    return report_of(simulation)


def markdown(document: Document) -> str:
    reports = msgspec.convert(document["runs"], list[SimulationReport])
    digests = [one.digest for one in reports]
    return (
        f"{machine_line(document)}\n\n{as_text(reports[0])}\n"
        f"peak memory {document['peak_kib'] / 1024:,.0f} MiB; digests {digests}\n"
    )


def faults(document: Document) -> bool:
    """Whether two runs differ, or a request was lost."""
    reports = document["runs"]
    # Each has one end: one that was in flight at two deaths in a row is failed on purpose.
    whole = all(
        one["requests"] == sum(one["finishes"].values()) + one["rejected"] for one in reports
    )
    return not whole or len({one["digest"] for one in reports}) > 1


COMMAND = Measurement(
    "long_simulation",
    __doc__,
    measure,
    markdown,
    {
        "--share": (1.0, "of 1,000 hours and 10 million requests"),
        "--twice": (False, "run it again, compare the digests"),
    },
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
