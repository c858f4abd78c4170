"""The position of a rank within the model that it computes with others."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.to_worker import RankGroup


@dataclass(frozen=True)
class RankPlace:
    """Ranks are numbered stage by stage: rank = stage * tensor + tensor_rank."""

    tensor: int = 1
    """Tensor-parallel size: ranks per stage."""
    pipeline: int = 1
    """Pipeline-parallel size: number of stages."""
    rank: int = 0
    """This rank, in [0, tensor * pipeline)."""

    def __post_init__(self) -> None:
        if self.tensor < 1 or self.pipeline < 1 or not 0 <= self.rank < self.ranks:
            raise ValueError(f"no rank of {self.tensor} x {self.pipeline}: {self.rank}")

    @property
    def ranks(self) -> int:
        """Number of ranks of the whole model."""
        return self.tensor * self.pipeline

    @property
    def tensor_rank(self) -> int:
        """Index within the stage, in [0, tensor)."""
        return self.rank % self.tensor

    @property
    def stage(self) -> int:
        """Index of the pipeline stage, in [0, pipeline)."""
        return self.rank // self.tensor

    @property
    def first(self) -> bool:
        """Whether the rank is in the first stage, which has the embedding."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether the rank is in the last stage, which has the output head and samples."""
        return self.stage == self.pipeline - 1

    @property
    def lead(self) -> bool:
        """Whether this is the rank that reports sampled tokens to the engine core."""
        return self.last and self.tensor_rank == 0

    @property
    def layout(self) -> str:
        """How the model is distributed, for logs and fingerprints."""
        if self.ranks == 1:
            return "1 rank"
        return f"tensor {self.tensor} pipeline {self.pipeline}"

    @staticmethod
    def of(group: RankGroup | None) -> RankPlace:
        return RankPlace() if group is None else RankPlace(group.tensor, group.pipeline, group.rank)
