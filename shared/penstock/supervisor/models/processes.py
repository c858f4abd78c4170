"""The processes of one model: its engine cores and their workers, from the first to the last."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from penstock.config.model_list import ModelEntry, config_of
from penstock.config.settings import ServeConfig
from penstock.errors import PenstockError, StartupError
from penstock.net.runtime_dir import RuntimeDir
from penstock.prepare import load_manifest
from penstock.prepare.folder import check_weights
from penstock.supervisor.child import Child, ChildSpec
from penstock.supervisor.preparing import Preparation, with_draft_folder, with_kept_template
from penstock.supervisor.replicas import EngineAddresses, Replica, make_replicas
from penstock.supervisor.restarts import GiveUp, Restart, RestartPolicy, describe

MOST_DEATHS = 6
"""Deaths of a model's processes since it was last ready, after which starting them again doesn't
help: the model has failed then. Requests get an error, and it is retried ever more seldom."""
FORGIVEN_AFTER = 600.0
"""Seconds without a death, after which those before don't count."""


@dataclass
class Deaths:
    """Deaths of all processes of a model since it was last ready. last: when the latest was."""

    count: int = 0
    last: float = 0.0

    def add(self, now: float) -> int:
        """How many there are with this one."""
        self.count = 1 if now - self.last >= FORGIVEN_AFTER else self.count + 1
        self.last = now
        return self.count


class BoundedRestarts(RestartPolicy):
    """Restarts as of any child, but not for ever. deaths: which the model's processes have in
    common."""

    def __init__(self, deaths: Deaths) -> None:
        super().__init__()
        self._deaths = deaths

    def died(self, code: int, now: float, *, system_was_ready: bool) -> Restart | GiveUp:
        """What follows a death, as RestartPolicy says, or GiveUp after MOST_DEATHS."""
        count = self._deaths.add(now)
        if system_was_ready and count >= MOST_DEATHS:
            return GiveUp(
                f"its processes died {count} times since it was last ready, the last time "
                f"{describe(code)}"
            )
        return super().died(code, now, system_was_ready=system_was_ready)


@dataclass
class ModelProcesses:
    """number: of the model, which tells its sockets and files apart.  count: of all models.
    grace: seconds that an engine core gets to leave."""

    entry: ModelEntry
    base: ServeConfig
    number: int
    count: int
    runtime: RuntimeDir
    grace: float
    was_ready: bool = False
    """Whether it has been, since it was started: its processes are then started again, as long as
    that helps."""
    _deaths: Deaths = field(default_factory=Deaths)
    _asked: ServeConfig = field(init=False)
    """Its settings, with the chat template that a file of them held when the system was started."""
    _config: ServeConfig | None = None
    _folder: Path | None = None
    _preparation: Preparation | None = None
    _engines: list[Child] = field(default_factory=list)
    _workers: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = config_of(self.entry, self.base, self.count)
        engine = with_kept_template(config.engine)
        self._asked = msgspec.structs.replace(config, engine=engine)

    def frontends(self) -> list[str]:
        """Addresses at which the model's engine cores take front ends; the same whenever they are
        started."""
        return self._endpoints("f")

    def _endpoints(self, side: str) -> list[str]:
        # Short names: there is a bound on the paths of sockets.
        return [
            self.runtime.endpoint(f"m{self.number}{side}{index}")
            for index in range(self._asked.data_parallel_size)
        ]

    async def prepare(self) -> tuple[Path, float]:
        """Finds its files, and returns their folder and the GiB that it counts for. Raises
        PenstockError."""
        preparation = Preparation(self._place() / "prepare.failure", self._asked.log)
        self._preparation = preparation
        self._folder = await preparation.folder(self._asked.engine.model)
        engine = await with_draft_folder(self._asked.engine, preparation)
        config = msgspec.structs.replace(self._asked, engine=engine)
        self._config, gib = within_memory(self.entry, config, self._folder)
        return self._folder, gib

    async def is_as_prepared(self) -> bool:
        """Whether its files of weights still are what was prepared. While none of its processes
        lives, they may be others."""
        if self._folder is None:
            return False
        try:
            await asyncio.to_thread(check_weights, load_manifest(self._folder))
        except PenstockError:
            return False
        return True

    async def run(self) -> str | None:
        """Starts what was prepared, and keeps it running. Returns why it can't go on, or None when
        it was stopped; the processes are gone then."""
        self.was_ready = False
        self._deaths = Deaths()
        try:
            replicas = self._replicas()
        except (OSError, PenstockError) as error:
            return str(error)
        self._workers = [self._child(spec) for each in replicas for spec in each.workers]
        self._engines = [self._child(each.engine) for each in replicas]
        children = (*self._workers, *self._engines)
        runs = [asyncio.create_task(child.run()) for child in children]
        try:
            await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
            return next((run.result() for run in runs if run.done() and run.result()), None)
        finally:
            await self.stop()
            await asyncio.gather(*runs, return_exceptions=True)

    def _replicas(self) -> list[Replica]:
        if self._config is None or self._folder is None:
            raise RuntimeError("a model is started that was not prepared")
        return make_replicas(
            self._config,
            RuntimeDir.part_of(self.runtime, self._place()),
            self._folder,
            EngineAddresses(",".join(self._endpoints("f")), ",".join(self._endpoints("w"))),
            self.grace,
        )

    def _child(self, spec: ChildSpec) -> Child:
        failure = self._place() / f"{spec.name.replace(' ', '-')}.failure"
        named = replace(
            spec,
            name=f"{spec.name} of {self.entry.name}",
            arguments=(*spec.arguments, "--of", self.entry.name),
        )
        policy = BoundedRestarts(self._deaths)
        return Child(named, failure, system_was_ready=lambda: self.was_ready, policy=policy)

    def seen_ready(self) -> None:
        """Somebody finds its engine core ready."""
        self.was_ready = True
        self._deaths.count = 0

    def _place(self) -> Path:
        """A folder for its files. Raises StartupError."""
        return self.runtime.folder(f"model-{self.number}")

    def stop_preparing(self) -> None:
        if self._preparation is not None:
            self._preparation.stop()

    async def stop(self) -> None:
        """The engine cores drain, then the workers go."""
        await asyncio.gather(*(child.stop() for child in self._engines))
        await asyncio.gather(*(child.stop() for child in self._workers))

    def kill(self) -> None:
        """SIGKILL, now."""
        for child in (*self._engines, *self._workers):
            child.kill()


# What a model counts for while it is loaded.

GIB = 1 << 30
LEAST_KV_GIB = 0.001


def weights_gib(folder: Path) -> float:
    """GiB of the files that a prepared folder's weights lie in. Raises StartupError."""
    weights = load_manifest(folder).weights
    files = [*weights.files, *([weights.mmproj] if weights.mmproj else [])]
    try:
        return sum(Path(file).stat().st_size for file in files) / GIB
    except OSError as error:
        raise StartupError(f"its weights can't be read: {error.strerror}") from None


def within_memory(
    entry: ModelEntry, config: ServeConfig, folder: Path
) -> tuple[ServeConfig, float]:
    """The model's settings, with a KV cache that keeps to what the entry says, and the GiB that it
    counts for. A draft model's weights count too. Raises StartupError where weights alone take
    more."""
    weights, cache = weights_gib(folder), config.engine.cache
    drafting = config.engine.speculation.config
    if drafting is not None and drafting.model:
        # By its prepared folder, see `with_draft_folder`.
        weights += weights_gib(Path(drafting.model))
    if entry.memory_gib is None:
        if not cache.kv_memory_gib and config.models.models_memory_gib is not None:
            raise StartupError(
                "kv_memory_gib is 0, which bounds no KV cache: with --models-memory-gib it needs "
                "memory_gib, or kv_memory_gib above 0"
            )
        return config, weights + cache.kv_memory_gib + cache.host_kv_gib
    left = entry.memory_gib - weights - cache.host_kv_gib
    if left < LEAST_KV_GIB:
        host = f", blocks in the host's memory {cache.host_kv_gib:g}" if cache.host_kv_gib else ""
        raise StartupError(
            f"its weights take {weights:.2f} GiB{host}, memory_gib is {entry.memory_gib:g}: there "
            "is no room for a KV cache"
        )
    bound = min(left, cache.kv_memory_gib) if cache.kv_memory_gib else left
    engine = msgspec.structs.replace(
        config.engine, cache=msgspec.structs.replace(cache, kv_memory_gib=bound)
    )
    return msgspec.structs.replace(config, engine=engine), entry.memory_gib
