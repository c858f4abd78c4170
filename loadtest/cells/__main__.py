"""A thousand engine cores in cells, in virtual time: what it costs to choose a cell first.

python -m loadtest.cells                         # 32 × 32, minutes on two processors
python -m loadtest.cells --cells 4 --replicas 4 --output FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from loadtest.cells.page import draw, text
from loadtest.cells.recorded import as_flag, cost_of, predicted, recorded
from loadtest.cells.scenarios import DAY, SCALED, Run, runs_of, scaling
from loadtest.report import Document, Flags, Measurement, SetupError, say


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
    every = runs_of(flags.cells, flags.replicas)
    parts = flags.parts or list(every)
    if set(parts) != set(every):
        document = _measured_before(flags, document)
    with ProcessPoolExecutor(flags.processes) as pool:
        for part in parts:
            runs = every[part]
            found = document[part] = []
            for report in pool.map(Run.simulate, runs):
                say(f"{part}: {report['title']}, {report['cpu_seconds']:.0f} s of the processor")
                found.append(report)
    if set(parts) == set(every):
        document["wall_seconds"] = time.monotonic() - begun
    yield document


def _measured_before(flags: Flags, document: Document) -> Document:
    """What the other parts are added to. Raises SetupError where it was of other sizes or costs."""
    path = flags.output / "cells.json"
    saved: Document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if any(saved.get(name) != document[name] for name in ("cells", "replicas", "step_cost")):
        raise SetupError(f"{path} has no parts of such a simulation; leave out --parts")
    return saved


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
        "--parts": {
            "nargs": "+",
            "choices": list(runs_of(2, 2)),
            "help": "simulate these anew, and keep the others (default: all)",
        },
    },
    draw=draw,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
