"""Kills and freezes processes of a real system under 32 streams.

python -m loadtest.chaos --kills 20 --freezes 10 --output loadtest/results/chaos.json
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from loadtest.chaos.disturbing import Disturber
from loadtest.chaos.report import as_data, recoveries
from loadtest.report.facts import machine_line
from loadtest.report.files import Report, say
from testing.serving import Server
from testing.streams.fleet import Fleet
from testing.streams.mix import mix

PROGRAM = "-m loadtest.chaos"
VICTIMS = ("worker 0", "engine")
TOKENS = 96
"""Of each answer."""


def main() -> int:
    """1 when a stream broke or differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of the worker, and of the engine")
    parser.add_argument("--freezes", type=int, default=10, help="of each, for up to 5 s")
    parser.add_argument("--output", type=Path, help="JSON file for every figure")
    flags = parser.parse_args()
    written = None if flags.output is None else Report.at(flags.output, PROGRAM)
    with Server() as server:
        fleet = Fleet(server.url, mix(TOKENS))
        disturber = Disturber(fleet, lambda title: server.processes().get(title), seed=1)
        asyncio.run(disturber.strike_all(VICTIMS, flags.kills, flags.freezes))
    text = recoveries(disturber.blows, fleet.score)
    for wrong in fleet.score.wrong:
        say(wrong)
    if written is None:
        print(text)
    else:
        data = as_data(disturber.blows, fleet.score)
        written.finish(data, lambda facts: f"{machine_line(facts)}\n\n{text}\n")
    return 1 if fleet.score.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
