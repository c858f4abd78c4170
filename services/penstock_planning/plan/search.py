"""The fewest engine cores that hold an objective, and how far a number of them can be loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from penstock_planning.plan.objective import LatencyBound
from penstock_planning.plan.traffic import PlanTraffic
from penstock_planning.plan.trial import CoreLayout, PlanTrial, run_trial
from penstock_planning.plan.work import TableWork, WorkSpent

LONE_REQUESTS, LONE_SECONDS = 100, 3600.0
"""Requests that are tried alone, and seconds between two of them."""
LONE_WORK = 4_000
"""Steps' worth of work, beyond which there are only as many of them as `enough` says."""
BEYOND = 3
"""Values that are to be beyond a percentile, which otherwise is what one unlucky request had."""

LOADS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
FEW_LOADS = (0.25, 0.5, 1.0)
"""Loads that are tried where no load is low enough."""
HALVINGS = 3
"""How often the distance between the highest load that holds and the next that doesn't is
halved."""

OVERLOADED = 0.98
"""Share of the time that cores compute who can't take more: beyond that there is nothing to see."""

MOST_CORES = 1024

MOST_WORK, WORK_OF_A_CORE = 14_000, 400
"""Steps' worth of work of a trial, of all engine cores and of each: the more of the two. On a slow
machine, whose batches are small, each request takes many steps."""
CURVE_SHARE = 0.3
"""The share of this work for smaller loads than the traffic's own. Of larger ones it takes as
long to see that queues grow."""

Tell = Callable[[str], None]


class Planner:
    """Runs one layout's trials, each of them once."""

    def __init__(
        self,
        layout: CoreLayout,
        traffic: PlanTraffic,
        bounds: Sequence[LatencyBound],
        tell: Tell = lambda words: None,
        *,
        all_requests: bool = True,
        work: TableWork | None = None,
        lone: PlanTrial | None = None,
    ) -> None:
        """all_requests: there is no bound on a trial's work but `work`, that of the table (None:
        none).  lone: what `alone` finds, where that is known. All methods raise WorkSpent when
        nothing is left of it."""
        self._all_requests = all_requests
        self._work = work or TableWork(math.inf)
        self.ended_early = False
        """The curve lacks loads for which no work was left."""
        self._layout = layout
        self._traffic = traffic
        self._bounds = bounds
        self._tell = tell
        self._done: dict[tuple[int, float], PlanTrial] = {}
        self._alone = lone

    @property
    def trials(self) -> list[PlanTrial]:
        """What was tried at the traffic's own rate, by the number of cores."""
        return [self._done[key] for key in sorted(self._done) if key[1] == 1.0]

    @property
    def all_trials(self) -> list[PlanTrial]:
        """All trials so far, at any rate."""
        return list(self._done.values())

    def alone(self) -> PlanTrial:
        """The first requests, as if each had an engine core to itself."""
        if self._alone is not None:
            return self._alone
        requests = self._traffic.apart(LONE_REQUESTS, LONE_SECONDS)
        self._alone = run_trial(
            self._layout,
            self._least,  # Two where prompts are computed apart.
            requests,
            self._bounds,
            load=0.0,
            rate=1 / LONE_SECONDS,
            table=self._work,
            most_work=None if self._all_requests else LONE_WORK,
            least=min(LONE_REQUESTS, enough(self._bounds)),
        )
        return self._alone

    def can_hold(self) -> bool:
        """Whether more engine cores may help: requests hold the objective alone, or the least that
        there can be hold it. Of few requests the first may come out wrong."""
        return self.alone().holds or self.at(self._least).holds

    @property
    def _least(self) -> int:
        return 2 if self._layout.apart else 1

    def at(self, cores: int, load: float = 1.0) -> PlanTrial:
        """The trial of so many cores."""
        key = (cores, load)
        if key not in self._done:
            rate = load * self._traffic.rate
            self._tell(f"{cores:,} engine cores, {rate:,.4g} requests/s")
            self._done[key] = run_trial(
                self._layout,
                cores,
                self._traffic.requests(load),
                self._bounds,
                load=load,
                rate=rate,
                counts=self._traffic.counts,
                table=self._work,
                most_work=None if self._all_requests else most_work(cores, load),
                least=enough(self._bounds),
            )
        return self._done[key]

    def fewest(self, most: int) -> PlanTrial | None:
        """The smallest number of cores that holds the objective, and next to which one less does
        not; None: not even `most` do."""
        below, above = self._least - 1, self._least
        while not (trial := self.at(min(above, most))).holds:
            if above >= most:
                return None
            # As many as would do if each did as much as these did, which have too much to do.
            enough = int(trial.cores * trial.rate / max(trial.throughput, 1e-9))
            below, above = above, max(2 * above, min(enough, 16 * above))
        above = min(above, most)
        while above - below > 1:
            middle = (above + below) // 2
            if self.at(middle).holds:
                above = middle
            else:
                below = middle
        return self.at(above)

    def curve(self, cores: int) -> list[PlanTrial]:
        """Load against latency, up to where the objective is broken, the knee between the two
        among them; as far as the table's work reaches."""
        found: list[PlanTrial] = []
        try:
            for trial in self._loads(cores):
                found.append(trial)
        except WorkSpent:
            self.ended_early = True
        return sorted(found or [self.at(cores)], key=lambda trial: trial.load)

    def _loads(self, cores: int) -> Iterator[PlanTrial]:
        low, high = 0.0, 0.0
        for load in LOADS if self.can_hold() else FEW_LOADS:
            trial = self.at(cores, load)
            yield trial
            if trial.holds:
                low = load
            else:
                high = high or load
            if self._is_hopeless(trial):
                break
        if 0 < low < high:
            for _ in range(HALVINGS):
                trial = self.at(cores, round((low + high) / 2, 4))
                yield trial
                if trial.holds:
                    low = trial.load
                else:
                    high = trial.load

    def _is_hopeless(self, trial: PlanTrial) -> bool:
        """Whether larger loads would only show the same, and more of it: where there is a bound on
        work, one that doesn't hold is enough."""
        early = trial.ended == "late" and 2 * trial.requests < self._traffic.num_requests
        return not trial.holds and (early or not self._all_requests or trial.busy > OVERLOADED)


def enough(bounds: Sequence[LatencyBound]) -> int:
    """Requests of which the objective's highest percentile says something."""
    return max(math.ceil(100 * BEYOND / (100 - bound.percent)) for bound in bounds)


def most_work(cores: int, load: float) -> int:
    """Steps' worth of work of a trial before its last arrival."""
    most = max(MOST_WORK, WORK_OF_A_CORE * cores)
    return most if load >= 1.0 else int(CURVE_SHARE * most)


def knee(curve: Sequence[PlanTrial]) -> PlanTrial | None:
    """The highest load of those before the first that doesn't hold."""
    best = None
    for trial in curve:
        if not trial.holds:
            break
        best = trial
    return best
