"""Kills and freezes processes of a real system under 32 streams.

python -m loadtest.chaos --kills 20 --freezes 10 --output loadtest/results/chaos.json
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from loadtest.chaos import report
from loadtest.chaos.disturbing import Disturber
from loadtest.report.facts import machine_line
from loadtest.report.files import Report, say
from testing.serving import Server
from testing.streams.fleet import Fleet
from testing.streams.mix import mix

PROGRAM = "-m loadtest.chaos"
VICTIMS = ("worker 0", "engine")


def main() -> int:
    """1 when a stream broke or differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of the worker, and of the engine")
    parser.add_argument("--freezes", type=int, default=10, help="of each, for up to 5 s")
    parser.add_argument("--tokens", type=int, default=96, help="length of each answer")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--output", type=Path, help="JSON file for every figure")
    parser.add_argument("serve", nargs="*", help="arguments for penstock serve, after --")
    arguments = parser.parse_args()
    written = None if arguments.output is None else Report.at(arguments.output, PROGRAM)
    with Server(*arguments.serve) as server:
        fleet, disturber = asyncio.run(run(server, arguments))
    table = report.table(disturber.blows, fleet.score)
    for wrong in fleet.score.wrong:
        say(wrong)
    if written is None:
        print(table)
    else:
        data = report.as_data(disturber.blows, fleet.score)
        written.finish(data, lambda facts: f"{machine_line(facts)}\n\n{table}\n")
    return 1 if fleet.score.wrong else 0


async def run(server: Server, arguments: argparse.Namespace) -> tuple[Fleet, Disturber]:
    """The whole of it, each victim in its turn."""
    fleet = Fleet(server.url, mix(arguments.tokens))
    disturber = Disturber(fleet, lambda title: server.processes().get(title), arguments.seed)
    async with fleet:
        for victim in VICTIMS:
            await disturber.kill(victim, arguments.kills)
            await disturber.freeze(victim, arguments.freezes)
    return fleet, disturber


if __name__ == "__main__":
    sys.exit(main())
