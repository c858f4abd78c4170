"""How much is simulated for a table of a plan, so that each ends in a known time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.errors import InvalidRequest
from penstock_planning.simulate.simulation import Simulation
from penstock_planning.simulate.trace import TraceRequest

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
MOST_REMEDIES, LEAST_SHARE = 3, 0.05
"""What is named of a table's work that is spared: so many flags, and no share that is less."""


class WorkSpent(Exception):
    """A table has all the work that it may take."""


class RunWork(msgspec.Struct):
    """What a run took so far. making: of its engine cores, in steps' worth of work, as prompts and
    routing are.  events: of the simulation.  tokens: of answers."""

    cores: int
    making: float
    requests: int = 0
    prompts: float = 0.0
    routing: float = 0.0
    events: int = 0
    tokens: int = 0

    @property
    def done(self) -> float:
        """Steps' worth of work, once its engine cores were made."""
        return self.events + self.tokens / ROWS + self.requests + self.prompts + self.routing

    @property
    def of_answers(self) -> float:
        """The part of it that ends with the last token. A step without one is a prompt's."""
        return min(self.events, self.tokens) + self.tokens / ROWS

    @property
    def of_cores(self) -> float:
        """The part of it that one engine core wouldn't take."""
        return (self.making + self.routing) * (1 - 1 / self.cores)


class TableWork:
    """What the runs of a table may still simulate, in steps' worth of work. runs: what each took,
    of which there are a few dozen."""

    def __init__(self, most: float) -> None:
        self.most = self.left = float(most)
        self.runs: list[RunWork] = []

    def make(self, cores: int, blocks: int) -> None:
        """A run begins for which so many engine cores will be made, each with so many KV blocks.
        Raises InvalidRequest for what doesn't fit into memory, WorkSpent if that is more than is
        left."""
        if cores * blocks > MOST_BLOCKS:
            raise InvalidRequest(
                f"{cores:,} engine cores with {blocks:,} KV blocks each are too much to simulate; "
                f"{MOST_BLOCKS:,} blocks together are allowed (--max-cores, --num-kv-blocks)"
            )
        self.runs.append(RunWork(cores, cores / NEW_CORES + cores * blocks / NEW_BLOCKS))
        self.take(self.runs[-1].making)

    def take(self, work: float) -> None:
        """Raises WorkSpent if that is more than is left."""
        self.left -= work
        if self.left <= 0:
            raise WorkSpent


class TrialWork:
    """What a run has simulated, the latest of its table. Each look at it is taken from the table's
    work."""

    def __init__(self, table: TableWork, simulation: Simulation) -> None:
        self._table = table
        self._simulation = simulation
        self._cores = len(simulation.replicas)
        self._run = table.runs[-1]
        self._taken = 0.0

    def arrived(self, request: TraceRequest) -> None:
        self._run.requests += 1
        self._run.prompts += request.num_prompt / PROMPT_TOKENS
        self._run.routing += self._cores / CORES

    @property
    def done(self) -> float:
        """Steps' worth of work so far."""
        self._run.events = self._simulation.events
        self._run.tokens = self._simulation.metrics.output_tokens
        return self._run.done

    def look(self) -> None:
        """Raises WorkSpent."""
        done = self.done
        taken, self._taken = done - self._taken, done
        self._table.take(taken)


def remedies(
    runs: Sequence[RunWork], *, enough: int, wanted: int, made: bool, cores: bool
) -> list[str]:
    """Flags that would have spared most of what the runs took, with the share that each spares, the
    most first. enough: requests that a run needs.  wanted: that the latest one would have had.
    made: the traffic, whose lengths are flags.  cores: that their number is given."""
    making = sum(run.of_cores for run in runs)
    answers = sum(run.of_answers for run in runs)
    everything = sum(run.making + run.done for run in runs)
    traffic = sum(run.done - run.routing for run in runs)
    counts = [*(run.requests for run in runs[:-1]), wanted]
    needless = sum(
        (run.done - run.routing) * max(0.0, 1 - enough / max(count, 1))
        for run, count in zip(runs, counts, strict=True)
    )
    # With one number of engine cores there are two runs, alone and together.
    search = sum(sorted(run.making + run.done for run in runs)[:-2])
    spared = {
        "fewer --output-tokens": answers if made else 0.0,
        "fewer --input-tokens": traffic - answers if made else 0.0,
        "fewer --requests": needless,
        "fewer --cores" if cores else "fewer --max-cores": making,
        "one number of --cores": 0.0 if cores else search,
    }
    best = sorted(spared, key=lambda flag: -spared[flag])
    shares = {flag: spared[flag] / max(everything, 1.0) for flag in best}
    return [
        f"{flag} (up to {100 * shares[flag]:.0f} % of it)"
        for number, flag in enumerate(best[:MOST_REMEDIES])
        if not number or shares[flag] > LEAST_SHARE
    ]


def table_work(*, all_requests: bool) -> TableWork:
    """all_requests: it is said how many requests are simulated."""
    return TableWork(ASKED_WORK if all_requests else TABLE_WORK)
