"""How much is simulated for a table of a plan, so that each ends in a known time."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock_engine.simulate.simulation import Simulation
from penstock_engine.simulate.trace import TraceRequest

ROWS, PROMPT_TOKENS, CORES, NEW_CORES, NEW_BLOCKS = 12, 2048, 256, 0.1, 64
"""What takes as long as a step of one sequence: so many further sequences of a step, so many tokens
of a prompt, choosing among so many engine cores, making and checking so many of them, or of KV
blocks."""

MOST_BLOCKS = 50_000_000
"""KV blocks of all engine cores of a run: some GB of memory."""

TABLE_WORK = 400_000
"""Steps' worth of work of a table: one to two minutes of a processor. Most take a third."""
ASKED_WORK = 10 * TABLE_WORK
"""The work of a table where it is said how many requests are simulated."""


class WorkSpent(Exception):
    """A table has all the work that it may take."""


class TableWork:
    """What the runs of a table may still simulate, in steps' worth of work."""

    def __init__(self, most: float) -> None:
        self.most = self.left = float(most)

    def make(self, cores: int, blocks: int) -> None:
        """So many engine cores will be made, each with so many KV blocks. Raises InvalidRequest for
        what doesn't fit into memory, WorkSpent if that is more than is left."""
        if cores * blocks > MOST_BLOCKS:
            raise InvalidRequest(
                f"{cores:,} engine cores with {blocks:,} KV blocks each are too much to simulate; "
                f"{MOST_BLOCKS:,} blocks together are allowed (--max-cores, --num-kv-blocks)"
            )
        self.take(cores / NEW_CORES + cores * blocks / NEW_BLOCKS)

    def take(self, work: float) -> None:
        """Raises WorkSpent if that is more than is left."""
        self.left -= work
        if self.left <= 0:
            raise WorkSpent


class TrialWork:
    """What a run has simulated. Each look at it is taken from the table's work."""

    def __init__(self, table: TableWork, simulation: Simulation) -> None:
        self._table = table
        self._simulation = simulation
        self._cores = len(simulation.replicas)
        self._arrived = 0.0
        self._taken = 0.0

    def arrived(self, request: TraceRequest) -> None:
        self._arrived += 1 + request.num_prompt / PROMPT_TOKENS + self._cores / CORES

    @property
    def done(self) -> float:
        """Steps' worth of work so far."""
        simulation = self._simulation
        return simulation.events + simulation.metrics.output_tokens / ROWS + self._arrived

    def look(self) -> None:
        """Raises WorkSpent."""
        done = self.done
        self._table.take(done - self._taken)
        self._taken = done


def table_work(*, all_requests: bool) -> TableWork:
    """all_requests: it is said how many requests are simulated."""
    return TableWork(ASKED_WORK if all_requests else TABLE_WORK)
