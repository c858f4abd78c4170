"""Where the workers of an engine core run, and what is started for them here (`--executor`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.config.settings import EngineConfig, ServeConfig
from penstock.errors import StartupError
from penstock.supervisor.child import ChildSpec
from penstock.supervisor.gpus import VISIBLE, devices_of_workers

RAY_GRACE = 15.0
"""Seconds to stop the workers of a cluster, and to give its resources back."""


@dataclass(frozen=True)
class WorkerGroup:
    """An engine core whose workers are wanted.

    number: of `count`.  config_file: its configuration.  endpoint: where workers dial it.
    model_dir: the prepared folder.  ready_file: exists from when the system was ready.
    """

    number: int
    count: int
    ranks: int
    config_file: Path
    endpoint: str
    model_dir: Path
    ready_file: Path

    @property
    def indexed(self) -> tuple[str, ...]:
        """What tells an engine core's processes apart, where there are several."""
        return ("--index", str(self.number)) if self.count > 1 else ()


class Executor(Protocol):
    """Makes the processes that are, or look after, the ranks of an engine core."""

    def settings(self, engine: EngineConfig) -> EngineConfig:
        """What an engine core is to tell its ranks where they run."""
        ...

    def workers(self, place: WorkerGroup) -> tuple[ChildSpec, ...]:
        """What to run here, for as long as the engine core runs."""
        ...


class LocalExecutor:
    """Starts a process next to the engine core for each rank, with a GPU of its own where there are
    any.

    Raises StartupError where there are too few.
    """

    def __init__(self, config: ServeConfig) -> None:
        worker, ranks = config.engine.worker, config.engine.parallel.ranks
        self._devices: Sequence[str | None] = devices_of_workers(
            worker, ranks * config.data_parallel_size
        )

    def settings(self, engine: EngineConfig) -> EngineConfig:
        return engine

    def workers(self, place: WorkerGroup) -> tuple[ChildSpec, ...]:
        return tuple(self._worker(place, rank) for rank in range(place.ranks))

    def _worker(self, place: WorkerGroup, rank: int) -> ChildSpec:
        index = place.number * place.ranks + rank
        arguments = ["worker", "--config", str(place.config_file)]
        if place.count > 1:
            arguments += ["--index", str(index)]
        arguments += ["--engine-endpoint", place.endpoint, "--rank", str(rank)]
        device = self._devices[index]
        return ChildSpec(
            f"worker {index}",
            tuple(arguments),
            environment=() if device is None else ((VISIBLE, device),),
        )


class RayExecutor:
    """One process that holds a placement group of a Ray cluster, with an actor for each rank.

    Raises StartupError where Ray is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise StartupError(
                "--executor ray needs Ray, which is not installed here: pip install"
                " 'penstock-llm[ray]'"
            )

    def settings(self, engine: EngineConfig) -> EngineConfig:
        """This machine's cores say nothing about those of the nodes: a rank computes with as many
        threads as it reserves CPUs, which is one where nothing else was said."""
        if engine.worker.threads is not None:
            return engine
        return msgspec.structs.replace(
            engine, worker=msgspec.structs.replace(engine.worker, threads=1)
        )

    def workers(self, place: WorkerGroup) -> tuple[ChildSpec, ...]:
        arguments = ("ray-workers", "--config", str(place.config_file), *place.indexed)
        arguments += ("--engine-endpoint", place.endpoint, "--model-dir", str(place.model_dir))
        arguments += ("--ready-file", str(place.ready_file))
        name = f"ray {place.number}" if place.count > 1 else "ray"
        return (ChildSpec(name, arguments, grace=RAY_GRACE),)


def executor_of(config: ServeConfig) -> Executor:
    """The one that the configuration names."""
    return RayExecutor() if config.executor == "ray" else LocalExecutor(config)
