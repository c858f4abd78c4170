"""Which place holds each expert of a model. Data: loading, kernels and estimates read the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.dealing import deal

MOST_DIGITS = 6
"""Of a number of layers in words: Python reads long ones slowly, and refuses the longest."""


@dataclass(frozen=True, order=True)
class ExpertPlace:
    """Where an expert's weights lie, and its rows are computed."""

    rank: int = 0
    """Tensor-parallel rank of the layer's stage."""
    memory: Literal["host", "card"] = "host"
    """Whether that rank's processor computes the expert from its own memory, or its card."""


@dataclass(frozen=True)
class ExpertPlaces:
    """The table of places."""

    layers: tuple[tuple[ExpertPlace, ...], ...]
    """For each layer of the model, the place of each of its experts; empty for a layer without
    experts."""

    def ranks(self, layer: int) -> tuple[int, ...]:
        """Returns the rank of each expert of a layer."""
        return tuple(place.rank for place in self.layers[layer])

    def held(self, layer: int, rank: int, memory: str | None = None) -> tuple[int, ...]:
        """Returns the experts of a layer that a rank holds, ascending; of those, the ones in
        `memory` (None: in any)."""
        return tuple(
            expert
            for expert, place in enumerate(self.layers[layer])
            if place.rank == rank and memory in (None, place.memory)
        )


def expert_counts(config: ModelConfig) -> list[int]:
    """Returns the number of experts of each layer; 0 for a layer without."""
    layers = map(config.layer, range(config.num_layers))
    experts = (layer.feed_forward.experts for layer in layers)
    return [0 if each is None else each.count for each in experts]


def dealt(config: ModelConfig, ranks: int) -> ExpertPlaces:
    """Returns the table in which every layer's experts are dealt to `ranks` in their order, the
    larger shares first."""
    return ExpertPlaces(tuple(_dealt(count, ranks) for count in expert_counts(config)))


def _dealt(count: int, ranks: int) -> tuple[ExpertPlace, ...]:
    return tuple(
        ExpertPlace(rank)
        for rank, share in enumerate(deal(count, ranks))
        for _ in range(len(share))
    )


def parallel_places(config: ModelConfig, ranks: int) -> ExpertPlaces:
    """Returns the table of expert parallelism. Raises StartupError for a model without experts, and
    for as many ranks as can't all have some."""
    counts = [count for count in expert_counts(config) if count]
    if not counts:
        raise StartupError("enable_expert_parallel is set; the model has no experts")
    fewest = min(counts)
    if not 1 < ranks <= fewest:
        raise StartupError(
            f"enable_expert_parallel deals {fewest} experts to tensor_parallel_size ranks, which is"
            f" {ranks}; allowed are 2 to {fewest}"
        )
    return dealt(config, ranks)


def number_of(words: str) -> int:
    """Returns a number of layers; -1 for words that are none."""
    return int(words) if words.isdecimal() and len(words) <= MOST_DIGITS else -1


def host_places(config: ModelConfig, layers: str) -> ExpertPlaces:
    """Returns the table of a model on one card whose host has the experts of some layers.

    `layers`: how many of those that have experts, from the first one on; or all. Raises
    StartupError for other words, and for a model without experts.
    """
    counts = expert_counts(config)
    most = sum(count > 0 for count in counts)
    if not most:
        raise StartupError(f"cpu_experts is {layers}; the model has no experts")
    wanted = most if layers == "all" else number_of(layers)
    if not 0 <= wanted <= most:
        raise StartupError(
            f"cpu_experts is {layers!r}; allowed are 0 to {most}, the number of layers with "
            "experts, all, and auto; or off"
        )
    left, found = wanted, []
    for count in counts:
        found.append((ExpertPlace(0, "host" if left else "card"),) * count)
        left -= bool(count and left)
    return ExpertPlaces(tuple(found))
