"""Expert parallelism on the CPU kernels: a rank computes its own experts as a whole.

Every rank has all rows, so each routes them alike, and computes those that chose its experts. What
an expert gives a row goes to the ranks that add it: each adds its columns of all experts' results,
in the experts' order, as one rank does. So it doesn't matter to any bit where an expert is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from penstock.model.expert_places import ExpertPlaces
from penstock.process import logs
from penstock_kernels.cpu.program import Phase, PhaseKind
from penstock_worker.forward.cpu.split import RankSplit
from penstock_worker.forward.cpu.weights import ExpertWeights, LayerWeights
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.shared_memory import Rows

log = logs.get(__name__)

_OF_EXPERT = ".experts."
"""In the names of experts' matrices, in our naming."""


@dataclass(frozen=True)
class ExpertSplit(RankSplit):
    """The split of a rank that holds some experts; all else is cut as by RankSplit."""

    experts_at: ExpertPlaces

    def rows(self, name: str, outputs: int) -> range:
        return range(outputs) if _OF_EXPERT in name else super().rows(name, outputs)

    def expert_ranks(self, layer: int) -> tuple[int, ...]:
        return self.experts_at.ranks(layer)

    def experts(
        self, up: Phase, down: Phase, weights: ExpertWeights, width: int = 0
    ) -> Iterator[Phase]:
        parts = self._results(width)
        yield up
        yield down
        yield Phase(
            kind=PhaseKind.EXCHANGE,
            width=parts[-1].stop,
            part=True,
            experts=down.experts,
            exchange_results=PlacesExchange(self.ranks, np.array(weights.ranks), tuple(parts)),
        )

    def combined(self, phase: Phase, width: int = 0) -> Phase:
        part = self.results(phase, width)
        return replace(part, columns=len(self._own(self._results(width))))


def log_share(layers: Sequence[LayerWeights]) -> None:
    """Says in the log what a rank holds of its stage's experts."""
    stored = [layer.experts for layer in layers if layer.experts is not None]
    here = [each.tiles for each in stored]
    log.info(
        "this rank holds some of the experts",
        experts=sum(map(len, here)),
        of=sum(len(each.ups) for each in stored),
        bytes=sum(sum(each.values()) for each in here),
    )


@dataclass(frozen=True)
class PlacesExchange:
    """Exchanges what experts give: of each place (a row at one of its experts), the expert's rank
    has the numbers."""

    ranks: Ranks
    owners: np.ndarray
    """Rank of each expert, [experts]."""
    columns: tuple[range, ...]
    """What each rank reads of all places."""
    _in_order: bool = field(init=False)
    """Whether the experts of a rank are neighbours, and so their places."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_in_order", bool((np.diff(self.owners) >= 0).all()))

    def __call__(self, values: np.ndarray, first: np.ndarray) -> None:
        """Completes `values`, [places, width] float32. first: see ResultsExchange."""
        self.ranks.exchange_rows(values, self._held(first), self.columns)

    def _held(self, first: np.ndarray) -> list[Rows]:
        """Returns each rank's places."""
        count = len(self.columns)
        if self._in_order:
            bounds = np.searchsorted(self.owners, np.arange(count + 1)).tolist()
            return [range(int(first[low]), int(first[high])) for low, high in pairwise(bounds)]
        by_place = np.repeat(self.owners, np.diff(first))
        return [(by_place == rank).nonzero()[0] for rank in range(count)]
