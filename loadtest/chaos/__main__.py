"""Kills and freezes processes of a real system under 32 streams.

python -m loadtest.chaos --kills 20 --freezes 10 --output loadtest/results/chaos.json
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from loadtest.chaos import report
from loadtest.chaos.disturbing import Disturber
from loadtest.report.facts import now, run_facts
from testing.serving import Server
from testing.streams.fleet import Fleet
from testing.streams.mix import mix

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
    started = now()
    with Server(*arguments.serve) as server:
        fleet, disturber = asyncio.run(run(server, arguments))
    print(report.table(disturber.blows, fleet.score))
    for wrong in fleet.score.wrong:
        print(wrong, file=sys.stderr)
    if arguments.output is not None:
        facts = run_facts("-m loadtest.chaos", sys.argv[1:], started)
        data = {**facts, **report.as_data(disturber.blows, fleet.score)}
        arguments.output.write_bytes(msgspec.json.format(msgspec.json.encode(data)) + b"\n")
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
