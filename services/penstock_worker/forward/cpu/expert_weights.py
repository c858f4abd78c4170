"""Packs a layer's experts, of which a rank may hold some only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix
from penstock_worker.forward.cpu.split import Split
from penstock_worker.forward.cpu.weights import ExpertWeights, FeedForwardMatrices
from penstock_worker.layers.experts import load_by_token
from penstock_worker.weights.weights import Weights


class PacksMatrices(Protocol):
    """What reads and packs the tensors of a model."""

    config: ModelConfig
    weights: Weights
    kind: MatrixKind | None

    def matrix(
        self, name: str, outputs: int, inputs: int, *, kind: MatrixKind | None, bias: bool = False
    ) -> PackedMatrix:
        """Returns this rank's outputs of a matrix."""

    def vector(self, name: str, size: int) -> np.ndarray:
        """Returns [size] float32."""

    def sized(
        self, spec: FeedForwardSpec, at: str, inner: int, width: int = 0
    ) -> FeedForwardMatrices:
        """Returns the matrices of a feed-forward, which reads and writes `width` numbers; 0: the
        hidden size."""


@dataclass(frozen=True)
class ExpertReader:
    """Packs the experts that this rank holds, and the shared ones, which all ranks have."""

    packer: PacksMatrices
    split: Split
    rank: int
    """Tensor-parallel rank."""

    def read(self, spec: FeedForwardSpec, at: str, layer: int) -> ExpertWeights | None:
        """Returns the experts of a layer whose tensors' names begin with `at`; None: it has
        none."""
        said, packer = spec.experts, self.packer
        if said is None:
            return None
        ranks = self.split.expert_ranks(layer)
        each = self._each(spec, at, said, ranks)
        hidden, matrix = packer.config.hidden_size, partial(packer.matrix, kind=packer.kind)
        fine = partial(packer.matrix, inputs=hidden, kind=MatrixKind.F32)
        vector, router = partial(packer.vector, size=said.count), f"{at}.router"
        return ExpertWeights(
            # A choice turns on small differences, and a router is small.
            router=fine(router, said.count, bias=said.router_bias),
            gates=tuple(found["gate"] for found in each if found["gate"] is not None),
            ups=tuple(found["up"] for found in each if found["up"] is not None),
            downs=tuple(found["down"] for found in each if found["down"] is not None),
            correction=vector(f"{router}.correction") if said.correction else None,
            shared_gate=fine(f"{at}.shared_expert_gate", 1) if said.shared_gate else None,
            scales=vector(f"{router}.scales.weight") if said.expert_scales else None,
            by_token=self._by_token(said, at) if said.by_token else None,
            latent_down=matrix(f"{at}.latent_down", said.latent, hidden) if said.latent else None,
            latent_up=matrix(f"{at}.latent_up", hidden, said.latent) if said.latent else None,
            ranks=ranks,
        )

    def _each(
        self, spec: FeedForwardSpec, at: str, said: ExpertsSpec, ranks: Sequence[int]
    ) -> list[FeedForwardMatrices]:
        """ranks: which rank holds each; empty: all are read."""
        found = {
            number: self.packer.sized(spec, f"{at}.experts.{number}", said.inner, said.latent)
            for number in range(said.count)
            if not ranks or ranks[number] == self.rank
        }
        absent = _elsewhere(next(iter(found.values())))
        return [found.get(number, absent) for number in range(said.count)]

    def _by_token(self, said: ExpertsSpec, at: str) -> np.ndarray:
        table = load_by_token(self.packer.weights, self.packer.config.vocab_size, said, at)
        return np.ascontiguousarray(table.numpy(), dtype=np.int32)


def _elsewhere(matrices: FeedForwardMatrices) -> FeedForwardMatrices:
    """Returns the matrices of an expert of the same shape that another rank has."""
    gate, up, down = (
        None if each is None else each.elsewhere()
        for each in (matrices["gate"], matrices["up"], matrices["down"])
    )
    return {"gate": gate, "up": up, "down": down}
