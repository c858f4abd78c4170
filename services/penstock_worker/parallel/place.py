"""Where a rank stands among those that compute one model."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.to_worker import RankGroup


@dataclass(frozen=True)
class RankPlace:
    """tensor, pipeline: ranks of a stage, and stages.  rank: in [0, tensor * pipeline)."""

    tensor: int = 1
    pipeline: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        if self.tensor < 1 or self.pipeline < 1 or not 0 <= self.rank < self.ranks:
            raise ValueError(f"no rank of {self.tensor} x {self.pipeline}: {self.rank}")

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.tensor

    @property
    def stage(self) -> int:
        return self.rank // self.tensor

    @property
    def first(self) -> bool:
        """Of the stage that has the embedding."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Of the stage that has the output head, and samples."""
        return self.stage == self.pipeline - 1

    @property
    def lead(self) -> bool:
        """Tells the engine core what was sampled."""
        return self.last and self.tensor_rank == 0

    @property
    def layout(self) -> str:
        """How the model is spread, for people and fingerprints."""
        if self.ranks == 1:
            return "1 rank"
        return f"tensor {self.tensor} pipeline {self.pipeline}"

    @staticmethod
    def of(group: RankGroup | None) -> RankPlace:
        return RankPlace() if group is None else RankPlace(group.tensor, group.pipeline, group.rank)
