"""What is reserved of a Ray cluster for the ranks of one engine core."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import ray
from penstock.config.settings import WorkerSettings
from penstock_ray.reach import Unavailable

STRATEGY = "PACK"
"""Ray's strategy that takes as few nodes as will do: sums between ranks cost least inside a
machine."""

PATIENCE = 30.0
"""Seconds in which the cluster must have room."""

_ON_CUDA = ("auto", "triton")


@dataclass(frozen=True)
class Bundle:
    """What one rank needs. gpus: 0 or 1.  cpus: as many as it has threads."""

    cpus: int
    gpus: int

    @property
    def resources(self) -> dict[str, float]:
        """What a rank reserves, in Ray's words."""
        found = {"CPU": float(self.cpus), "GPU": float(self.gpus)}
        return {name: amount for name, amount in found.items() if amount}


def bundle_of(worker: WorkerSettings, cluster: dict[str, float]) -> Bundle:
    """What a rank needs. cluster: resources of all nodes; with --device auto, a GPU each if there
    is any."""
    wants = worker.device != "cpu" and worker.attention_backend in _ON_CUDA
    gpu = wants and (worker.device == "cuda" or cluster.get("GPU", 0) >= 1)
    return Bundle(cpus=worker.threads or 1, gpus=int(gpu))


class Reserved:
    """A placement group with a bundle for each rank. `release` gives it back."""

    def __init__(self, bundle: Bundle, ranks: int) -> None:
        self.bundle = bundle
        self._ranks = ranks
        self._group: Any = placement_group([bundle.resources] * ranks, strategy=STRATEGY)

    async def wait(self, patience: float = PATIENCE) -> None:
        """Waits until the cluster has reserved it. Raises Unavailable."""
        try:
            await asyncio.wait_for(self._group.ready(), patience)
        except TimeoutError:
            need = ", ".join(f"{n:g} {name}" for name, n in self.bundle.resources.items())
            there = ray.cluster_resources()
            has = ", ".join(f"{there.get(n, 0):g} {n}" for n in ("CPU", "GPU"))
            raise Unavailable(
                f"the Ray cluster had no room within {patience:g} s for {self._ranks} ranks of"
                f" {need} each; it has {has} in all, some of it may be in use"
            ) from None

    def options(self, rank: int) -> dict[str, Any]:
        """Options of the actor that has this rank's bundle."""
        return {
            "num_cpus": self.bundle.cpus,
            "num_gpus": self.bundle.gpus,
            "max_restarts": 0,
            "max_concurrency": 4,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=rank
            ),
        }

    def release(self) -> None:
        """What still runs in it is ended by Ray."""
        remove_placement_group(self._group)
