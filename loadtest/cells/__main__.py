"""A thousand engine cores in cells, in virtual time: what it costs to choose a cell first.

python -m loadtest.cells                         # 32 × 32, minutes on two processors
python -m loadtest.cells --cells 4 --replicas 4 --output FOLDER
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from loadtest.cells.page import draw, text
from loadtest.cells.recorded import as_flag, cost_of, predicted, recorded
from loadtest.cells.scenarios import DAY, SCALED, Run, runs_of, scaling
from loadtest.report import Document, Flags, Measurement, say


def measure(flags: Flags) -> Iterator[Document]:
    """Simulates everything, `processes` runs at a time."""
    begun = time.monotonic()
    rates = recorded()
    cost = cost_of(rates)
    document: Document = {
        "cells": flags.cells,
        "replicas": flags.replicas,
        "step_cost": as_flag(cost),
        "recorded": {name: [rates[name], each] for name, each in predicted(cost).items()},
        "commands": [
            DAY.command(flags.cells, flags.replicas, "hashed", "--steps-at-once"),
            SCALED.command(
                *_small(flags), "hashed", "--steps-at-once", f"--happens {scaling(60.0)[0]}"
            ),
        ],
    }
    with ProcessPoolExecutor(flags.processes) as pool:
        for part, runs in runs_of(flags.cells, flags.replicas).items():
            found = document[part] = []
            for report in pool.map(Run.simulate, runs):
                say(f"{part}: {report['title']}, {report['cpu_seconds']:.0f} s of the processor")
                found.append(report)
    document["wall_seconds"] = time.monotonic() - begun
    yield document


def _small(flags: Flags) -> tuple[int, int]:
    run = runs_of(flags.cells, flags.replicas)["scaled"][0]
    return run.cells, run.replicas


COMMAND = Measurement(
    "cells",
    __doc__,
    measure,
    text,
    {
        "--cells": (32, "of the large simulation"),
        "--replicas": (32, "engine cores of each"),
        "--processes": (2, "simulations at a time"),
    },
    draw=draw,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
