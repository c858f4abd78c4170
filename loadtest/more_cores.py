"""What steps would take on more cores than there are here: a model, not a measurement.

    python -m loadtest.more_cores                                      # a minute
    python -m loadtest.more_cores --node-gbs 80 --node-cores 8         # of a desktop's memory

Each phase of a step is measured on one thread. On more, it takes the share of the thread that has
most of its units (tiles of 16 or 32 outputs, heads, rows), or as long as reading its weights takes
at the bandwidth of a NUMA node, whichever is longer. Then the threads meet at a barrier: each one
increments a counter, and its cache line goes from core to core. Beyond a node, weights still come
from the memory of one node. The model is compared with what two threads here need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # As the worker has it.

from loadtest.decode_profile import Alone, multiplied, numbers, weight_bytes
from loadtest.peers.servers import default_model
from loadtest.report import Document, Flags, Measurement, machine_line, markdown_table, say
from loadtest.report.table import sections
from loadtest.roofline import probe
from penstock.prepare import prepare
from penstock_kernels.cpu.program import Phase, PhaseKind

CORES = (1, 2, 4, 8, 16, 32, 64)
STEPS = 24
ROWS_TOGETHER = 128
"""Rows of a step that pass all tiles before the next ones: a unit is a tile for so many."""


@dataclass(frozen=True)
class PhaseCost:
    """Of one phase: what one thread needs, what can be shared out, and bytes of weights."""

    seconds: float
    units: int
    bytes: int
    waits: bool


@dataclass(frozen=True)
class Machine:
    """What is assumed. core_bandwidth, node_bandwidth: bytes per second that one core and all of a
    NUMA node read.  hop: seconds that a counter's cache line takes from core to core, of one node
    and of two."""

    core_bandwidth: float
    node_bandwidth: float
    node_cores: int
    hop: float
    far_hop: float

    def barrier(self, cores: int) -> float:
        if cores == 1:
            return 0.0
        near, far = min(cores, self.node_cores), max(0, cores - self.node_cores)
        return near * self.hop + far * self.far_hop

    def step_seconds(self, phases: Sequence[PhaseCost], cores: int) -> float:
        bandwidth = min(cores * self.core_bandwidth, self.node_bandwidth)
        seconds = 0.0
        for phase in phases:
            share = ceil(phase.units / cores) / phase.units
            seconds += max(phase.seconds * share, phase.bytes / bandwidth)
            seconds += self.barrier(cores) if phase.waits else 0.0
        return seconds


def units_of(phase: Phase, streams: int) -> int:
    """What a decode's threads share out in a phase. Each thread makes inputs for itself in steps of
    one or two rows."""
    blocks = ceil(streams / ROWS_TOGETHER)
    if phase.kind is PhaseKind.HEADS and phase.attention is not None:
        return (phase.attention.heads + 2 * phase.attention.kv_heads) * blocks
    if phase.kind is PhaseKind.ATTEND and phase.attention is not None:
        return streams * phase.attention.kv_heads
    matrices = [matrix.struct for matrix in multiplied(phase)]
    if not matrices:
        return streams if streams > 2 else 1
    width = 32 if phase.kind is PhaseKind.GATE_UP else 16
    return ceil(matrices[0].outputs / width) * blocks


def costs(alone: Alone, streams: int, steps: int) -> list[PhaseCost]:
    seconds = alone.quartile(steps)[:, 0]  # One thread waits for nobody.
    return [
        PhaseCost(float(each), units_of(phase, streams), weight_bytes(phase), phase.waits)
        for phase, each in zip(alone.phases, seconds, strict=True)
    ]


def measure(flags: Flags) -> Document:
    folder, cases = prepare(str(default_model())), []
    machine = Machine(
        core_bandwidth=probe.measure(threads=1).read_bytes_per_s,
        node_bandwidth=1e9 * flags.node_gbs,
        node_cores=flags.node_cores,
        hop=1e-9 * flags.hop_ns,
        far_hop=3e-9 * flags.hop_ns,
    )
    here = replace(machine, node_bandwidth=probe.measure(threads=2).read_bytes_per_s)
    for streams in flags.streams:
        say(f"more_cores: {streams} streams")
        steps = STEPS if streams < 64 else STEPS // 3
        phases = costs(Alone(folder, streams, 1), streams, steps)
        cases.append(
            {
                "streams": streams,
                "modelled": {str(n): machine.step_seconds(phases, n) for n in CORES},
                "two_modelled": here.step_seconds(phases, 2),
                "two_measured": float(Alone(folder, streams, 2).quartile(steps).sum()),
            }
        )
    return {"model": default_model().name, "assumed": asdict(machine), "cases": cases}


def markdown(document: Document) -> str:
    assumed, cases = document["assumed"], document["cases"]
    rows = [
        [
            f"{case['streams']}",
            *(
                f"{case['streams'] / case['modelled'][str(n)]:,.0f} "
                f"({100 * case['modelled']['1'] / case['modelled'][str(n)] / n:.0f} %)"
                for n in CORES
            ),
        ]
        for case in cases
    ]
    checked = [
        [
            f"{case['streams']}",
            f"{1e3 * case['two_modelled']:.2f}",
            f"{1e3 * case['two_measured']:.2f}",
        ]
        for case in cases
    ]
    return sections(
        [
            f"{machine_line(document)}; {document['model']}. **A model**, not a measurement, but "
            f"for one core: {assumed['core_bandwidth'] / 1e9:.1f} GB/s are read by a core (as "
            f"measured) and {assumed['node_bandwidth'] / 1e9:.0f} by a NUMA node of "
            f"{assumed['node_cores']} cores; a barrier takes {1e9 * assumed['hop']:.0f} ns for "
            f"each core of a node and {1e9 * assumed['far_hop']:.0f} for each further one. Tokens "
            "a second of decodes at 128 tokens of context, and the share of what as many single "
            "cores would give:",
            markdown_table(["streams", *(f"{n} cores" for n in CORES)], rows),
            "How far the model is right where it can be checked, milliseconds of a step on two "
            "threads here, with the bandwidth measured here:",
            markdown_table(["streams", "model", "measured"], checked),
        ]
    )


FLAGS = {
    "--streams": {"type": numbers, "default": numbers("1,8,64,256"), "help": "of each case"},
    "--node-gbs": (200.0, "GB/s that a NUMA node's memory gives"),
    "--node-cores": (32, "cores of a NUMA node"),
    "--hop-ns": (50.0, "nanoseconds that a cache line takes from core to core"),
}
COMMAND = Measurement("more_cores", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
