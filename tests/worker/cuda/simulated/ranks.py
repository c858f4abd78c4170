"""Ranks of a model, each on a simulated device of its own; drive like one runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_worker.forward.backends import choose
from penstock_worker.loading.again import ready_again
from penstock_worker.parallel.group import Group
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.steps.in_flight import PendingStep
from penstock_worker.worker import report
from tests.worker.cuda.simulated.device import Device, Misuse
from tests.worker.cuda.simulated.hosts import Hosts
from tests.worker.cuda.simulated.machine import COLLECTING, small_setup
from tests.worker.cuda.simulated.tensors import CUDA
from tests.worker.cuda.small_models import load_on_device
from tests.worker.device.plans import Ahead, Place
from tests.worker.parallel.together import Formed, Together


class DeviceGroup(Group):
    """hosts: let the others on while one of them waits here."""

    hosts: Hosts

    def flags(self, values: list[bool]) -> list[bool]:
        with self.hosts.elsewhere():
            return super().flags(values)

    def _meet(self, what: str, value: str) -> list[str]:
        with self.hosts.elsewhere():
            return super()._meet(what, value)


class OnDevices(Formed):
    """Ranks that have found one another."""

    def __init__(self, hosts: Hosts, tensor: int, pipeline: int) -> None:
        self.hosts = hosts
        self.devices: dict[Ranks, Device] = {}
        super().__init__(tensor, pipeline)

    def form(self) -> None:
        self.devices = dict(zip(self.ranks, self.hosts.devices, strict=True))
        super().form()

    def form_again(self) -> None:
        for ranks in self.ranks:
            ranks.leave()
        self.form()

    def computing(self, call: Callable[[Ranks], Any]) -> list[Any]:
        """Results of `each`, computed on the ranks' devices."""
        self.hosts.expect(len(self.ranks))
        return self.each(lambda ranks: self.hosts.run(self.devices[ranks], lambda: call(ranks)))

    def _join(self, ranks: Ranks, first: str) -> None:
        class OurGroup(DeviceGroup):
            hosts = self.hosts

        named = self._named(ranks.place, first)
        rendezvous = self.rendezvous[ranks.place.rank]
        ranks.join(OurGroup(named, rendezvous, CUDA, lambda: self.wanted))


class Pipeline(Together):
    """A model over formed ranks. changes: of Setup."""

    def __init__(
        self, formed: OnDevices, config: ModelConfig, files: WeightFiles | None, **changes: Any
    ) -> None:
        self.formed: OnDevices = formed
        self._told: dict[int, list[int]] = {}
        self._last_stage = [one for one in formed.ranks if one.place.last]
        model, setup = small_setup(config, files, **changes)
        self.setup = setup
        self.waited: set[str] = set()

        def load(ranks: Ranks) -> Any:
            prepared = model.prepared()
            recipe = choose(prepared, setup, 1, ranks)
            return load_on_device(recipe, prepared, setup, ranks)

        self._load = load
        loaded = formed.computing(load)
        (self.blocks,) = {each.ready.num_kv_blocks for each in loaded}
        self._take(loaded)

    def _take(self, loaded: list[Any]) -> None:
        self._loaded = dict(zip(self.formed.ranks, loaded, strict=True))
        self.runners = {ranks: each.runner for ranks, each in self._loaded.items()}

    def form_again(self, *fresh: Ranks) -> None:
        """fresh: ranks whose process is a new one."""

        def ready(ranks: Ranks) -> Any:
            if ranks in fresh:
                return self._load(ranks)
            ready_again(self._loaded[ranks], ranks)
            return self._loaded[ranks]

        for ranks in fresh:
            self.runners.pop(ranks).close()
        self.formed.form_again()
        self.reset()
        self._take(self.formed.computing(ready))

    def begin(self, plan: Plan) -> PipelineStep:
        plans = {ranks: self._with_tokens(plan, ranks) for ranks in self.formed.ranks}
        for new in plan.admitted:
            self._told[new.slot] = []
        for work in plan.work:
            self._told[work.slot] = []
        begun = self.formed.computing(lambda ranks: self._begin(ranks, plans[ranks]))
        return PipelineStep(self, dict(zip(self.formed.ranks, begun, strict=True)))

    def _begin(self, ranks: Ranks, plan: Plan) -> PendingStep:
        """Fails where it waits for anything but what is stated."""
        device = self.formed.devices[ranks]
        before = len(device.waits)
        step = self.runners[ranks].begin(plan)
        waits = set(device.waits[before:])
        if waits - COLLECTING:
            raise Misuse(f"begin waited in {waits - COLLECTING}")
        self.waited |= waits
        return step

    def outcomes(self, plan: Plan) -> list[type[Exception] | None]:
        """What each rank's step ends with. As soon as one has failed the group is over, as it is
        when a session ends: devices are cut loose, and hosts told."""

        def step(ranks: Ranks) -> type[Exception] | None:
            try:
                self.runners[ranks].begin(plan).result()
            except Exception as error:
                for each in self.formed.ranks:
                    each.abandon()
                    each.cut()
                return type(error)
            return None

        return self.formed.computing(step)

    def tell(self, lead: Result) -> None:
        for each in lead.slots:
            if each.token is not None:
                self._told[each.slot] = [each.token]

    def reset(self) -> None:
        self._on_each(lambda runner: runner.reset())

    def close(self) -> None:
        self._on_each(lambda runner: runner.close())

    def _on_each(self, call: Callable[[Any], None]) -> None:
        """Calls each rank whose process is there."""

        def on(ranks: Ranks) -> None:
            if ranks in self.runners:
                call(self.runners[ranks])

        self.formed.computing(on)


class PipelineStep:
    """A PendingStep of all ranks."""

    def __init__(self, pipeline: Pipeline, begun: dict[Ranks, PendingStep]) -> None:
        self._pipeline = pipeline
        self._begun = begun

    def done(self) -> bool:
        return True

    def result(self) -> Result:
        formed = self._pipeline.formed
        found = formed.computing(lambda ranks: self._begun[ranks].result())
        told = {
            ranks: report(result, ranks.place, result.compute_seconds)
            for ranks, result in zip(formed.ranks, found, strict=True)
        }
        last = [result for ranks, result in told.items() if ranks.place.last]
        if len({result.sampled for result in last}) > 1:
            raise Misuse("the ranks of the last stage have sampled unlike tokens")
        self._pipeline.tell(last[0])
        return last[0]


class AheadInStages(Ahead):
    """Plans as the engine core does where there are stages: nothing follows a step that samples."""

    def _work(self, place: Place, left: int) -> Any:
        sampled = len(place.job.prompt) + len(place.job.tokens)
        return None if place.expected > sampled else super()._work(place, left)
