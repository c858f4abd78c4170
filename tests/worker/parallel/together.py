"""Ranks of a model as threads of one process, each with its own group, weights and runner."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import msgspec
import torch

from penstock.model.config import ModelConfig
from penstock.model.kv_layout import kv_layout
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan, RankGroup, SlotWork
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.device.queue import HostQueue
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.grammar.interface import Compile
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.group import Group
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.rendezvous import Rendezvous
from penstock_worker.parallel.shard import shard_of
from penstock_worker.sampler import choose
from penstock_worker.steps.runner import StepRunner
from penstock_worker.steps.stage import EarlierStage, GrammarsElsewhere
from penstock_worker.weights.opening import open_weights
from penstock_worker.worker import report
from tests.worker.runners import Observer, host_runner

CPU = torch.device("cpu")


class Formed:
    """Ranks that have found one another. each: calls something with every rank, at once.
    wanted: whether their session stands."""

    def __init__(self, tensor: int, pipeline: int = 1) -> None:
        places = [RankPlace(tensor, pipeline, rank) for rank in range(tensor * pipeline)]
        self.ranks = [Ranks(place) for place in places]
        self.pool = ThreadPoolExecutor(len(places))
        self.rendezvous = [Rendezvous("127.0.0.1") for _ in places]
        self.number = 0
        self.wanted = True
        self.form()

    def form(self) -> None:
        self.number += 1
        first = self.rendezvous[0].address()
        self.each(lambda ranks: self._join(ranks, first))

    def _named(self, place: RankPlace, first: str) -> RankGroup:
        return RankGroup(
            tensor=place.tensor,
            pipeline=place.pipeline,
            rank=place.rank,
            rendezvous=first,
            number=self.number,
        )

    def _join(self, ranks: Ranks, first: str) -> None:
        named = self._named(ranks.place, first)
        ranks.join(Group(named, self.rendezvous[ranks.place.rank], CPU, lambda: self.wanted))

    def each(self, call: Callable[[Ranks], Any]) -> list[Any]:
        """What each returned. The first error of any: the others may wait for that rank in vain."""
        with torch.inference_mode(False):
            jobs = [self.pool.submit(call, one) for one in self.ranks]
            done, _ = wait(jobs, 240, FIRST_EXCEPTION)
            for job in done:
                job.result()
            return [job.result(0) for job in jobs]

    def close(self) -> None:
        for one in self.ranks:
            one.leave()
        for one in self.rendezvous:
            one.close()
        self.pool.shutdown()

    def __enter__(self) -> Formed:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()


class Together:
    """A model over formed ranks; drives like one StepRunner.

    Checks of every step that the ranks of the last stage have sampled alike.  compiles: each rank's
    grammar library.  observer: of the last stage's lead.
    """

    def __init__(
        self,
        formed: Formed,
        config: ModelConfig,
        files: WeightFiles,
        dtype: torch.dtype = torch.float32,
        *,
        block_size: int = 16,
        num_blocks: int = 512,
        slots: int = 64,
        compiles: Callable[[Ranks], Compile] | None = None,
        budget: float = 10.0,
        observer: Observer | None = None,
    ) -> None:
        self.formed = formed
        layout = kv_layout(config, 2048)
        self.num_groups = len(layout.groups)
        self._told: dict[int, list[int]] = {}
        self._last_stage = [one for one in formed.ranks if one.place.last]

        def build(ranks: Ranks) -> StepRunner[Any]:
            torch.set_num_threads(1)
            with torch.inference_mode():
                weights = open_weights(files, config, dtype)
                model = DecoderModel(config, weights, 2048, ranks=ranks)
                shard = shard_of(config, ranks.place)
                shape = CacheShape.of(shard.own, block_size, dtype, layout, shard.layers)
                forward = ReferenceForward(model, ReferenceAttention(shape, num_blocks), ranks)
            bounds = SlotBounds(
                slots, num_blocks, block_size, config.vocab_size, 2048, layout.groups
            )
            if not ranks.place.last:
                copies = BlockCopies(forward.kv_blocks(), 0)
                own = Slots(bounds, tokens_from_plans=True)
                stage = EarlierStage(forward, own, copies, [GrammarsElsewhere()])
                return StepRunner(HostQueue(), stage)
            grammars = None
            if compiles is not None:
                grammars = SlotGrammars(compiles(ranks), budget=budget, agree=ranks.any)
            # Every row's logits are joined, so all ranks of the stage must want them.
            watching = observer if ranks.place.lead else (lambda *row: None)
            return host_runner(
                forward,
                choose(1),
                Slots(bounds),
                grammars=grammars,
                together=True,
                observer=None if observer is None else watching,
            )

        self.runners = dict(zip(formed.ranks, formed.each(build), strict=True))

    def execute(self, plan: Plan) -> Result:
        results = self.formed.each(lambda ranks: self._one(ranks, self._with_tokens(plan, ranks)))
        reported = dict(zip(self.formed.ranks, results, strict=True))
        for ranks, result in reported.items():
            assert bool(result.slots) == (ranks.place.lead and bool(plan.work))
        assert len({reported[ranks].sampled for ranks in self._last_stage}) == 1
        (lead,) = [result for ranks, result in reported.items() if ranks.place.lead]
        for new in plan.admitted:
            self._told[new.slot] = []
        for work in plan.work:
            self._told[work.slot] = []
        for each in lead.slots:
            if each.token is not None:
                self._told[each.slot] = [each.token]
        return lead

    def _one(self, ranks: Ranks, plan: Plan) -> Result:
        return report(self.runners[ranks].execute(plan), ranks.place, 0.0)

    def _with_tokens(self, plan: Plan, ranks: Ranks) -> Plan:
        """The plan with tokens, as the engine core makes it where there are stages."""
        if ranks.place.pipeline == 1:
            return plan
        admitted = {new.slot for new in plan.admitted}
        work = [
            SlotWork(
                one.slot,
                one.start,
                one.count,
                one.new_blocks,
                [] if one.slot in admitted else self._told.get(one.slot, []),
            )
            for one in plan.work
        ]
        return msgspec.structs.replace(plan, work=work)

    def close(self) -> None:
        for runner in self.runners.values():
            runner.close()
