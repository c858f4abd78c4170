"""Pooling steps.

On a device with a queue, a whole step is queued, including the copies of its vectors to pinned
memory. Its result waits for these, and does the rest on the host, since it differs between
requests: truncation, normalisation, and probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock.model.kv_layout import ONE_GROUP, KVGroup
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import PreparedModel
from penstock.process import logs
from penstock.protocol.common import PoolingTask
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_worker.batch.block_copies import NO_COPIES, Copies
from penstock_worker.batch.slots import PlanError, Slot, SlotBounds, Slots
from penstock_worker.device.queue import queue_of
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.metrics.phases import Phases
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.bodies import Body, Hidden
from penstock_worker.pooling.heads import Head, load_dense
from penstock_worker.pooling.pool import as_vectors, finished, scored
from penstock_worker.pooling.row_heads import RowHead, load_row_heads
from penstock_worker.sampler.transfers import Fetched, Transfers, transfers
from penstock_worker.steps.feature import StepFeature
from penstock_worker.steps.kinds import Guard, StepKind, StepStart
from penstock_worker.steps.plans import failure
from penstock_worker.steps.runner import ShareThreads, StepRunner

log = logs.get(__name__)


class Pooler:
    """Computes what pooling requests ask for."""

    def __init__(
        self,
        body: Body,
        head: Head | None,
        config: PoolingConfig,
        ways: Transfers | None = None,
        adapters: PoolAdapters | None = None,
        *,
        row_heads: Mapping[PoolingTask, RowHead],
    ) -> None:
        """`body` and `head` work on the same queue. `ways` copies between host and device; None for
        the default. `adapters`: of inputs, whose heads may be others. `row_heads`: by the tasks
        that they are for."""
        self._adapters = adapters or PoolAdapters()
        self.body = body
        self._head = head
        self._config = config
        self._dense = load_dense(config.dense)
        self._row_heads = row_heads
        self._transfers = ways or transfers(body.device)

    def launch(self, scheduled: list[SlotWork], slots: Slots) -> PoolingLaunch:
        launch = PoolingLaunch.of(scheduled, slots, self._config, self._dense, self._row_heads)
        heads = [self._adapters.head_of(work.slot, self._head) for work in scheduled]
        launch.fetch(self.body.hidden(scheduled, slots), heads, self._transfers)
        launch.advance()
        return launch


@dataclass
class PoolingLaunch:
    """Inputs of a step that were queued together, until the host has their vectors."""

    works: list[SlotWork]
    slots: dict[int, Slot]  # The slots of the works, as they were when queued.
    config: PoolingConfig
    dense: Head
    row_heads: Mapping[PoolingTask, RowHead]
    _fetched: Fetched | None = None
    _places: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """The place of each slot's numbers: (index of the fetched tensor with its numbers, row there or
    None for the whole tensor)."""

    @staticmethod
    def of(
        works: list[SlotWork],
        slots: Slots,
        config: PoolingConfig,
        dense: Head,
        row_heads: Mapping[PoolingTask, RowHead],
    ) -> PoolingLaunch:
        """Raises PlanError for a slot that asks for text."""
        for work in works:
            if slots[work.slot].pooling is None:
                raise PlanError(f"slot {work.slot} asks a pooling model for text")
        held = {work.slot: slots[work.slot] for work in works}
        return PoolingLaunch(works, held, config, dense, row_heads)

    def fetch(self, hidden: Hidden, heads: Sequence[Head | None], transfers: Transfers) -> None:
        """Queues what is requested of inputs that end in this step, and the copies to the host.
        `heads`: of each input. Each computes all inputs, so that scores don't depend on how many
        have it."""
        tensors: list[Tensor] = []
        shared: dict[object, int] = {}
        start = 0
        for row, (work, head) in enumerate(zip(self.works, heads, strict=True)):
            rows = slice(start, start + work.count)
            start = rows.stop
            asked = self.slots[work.slot].pooling
            if asked is None or not self._ends(work):
                continue
            if asked.task in self.row_heads:
                self._places[work.slot] = (len(tensors), None)
                tensors.append(_token_rows(hidden)[rows].float())
                continue
            classify = asked.task == "classify"
            key = head if classify else None
            if key not in shared:
                shared[key] = len(tensors)
                tensors.append(scored(hidden.vectors, head) if classify else hidden.vectors)
            self._places[work.slot] = (shared[key], row)
        if tensors:
            self._fetched = transfers.fetch(tensors)

    def advance(self) -> None:
        """Called when everything is queued: advances the slots ahead of the device."""
        for work in self.works:
            self.slots[work.slot].computed = work.start + work.count

    def settle(self) -> dict[int, SlotResult]:
        """Waits for the device and returns the results by slot. Slots that have failed have
        none."""
        arrays = [] if self._fetched is None else self._fetched.arrays()
        values = [torch.from_numpy(array) for array in arrays]
        results: dict[int, SlotResult] = {}
        for work in self.works:
            slot = self.slots[work.slot]
            if slot.failed is not None:
                continue
            try:
                results[work.slot] = self._settled(work, slot, values)
            except Exception as error:
                log.error("an input's vectors can't be computed", exception=True, slot=work.slot)
                slot.failed = failure(error)
        return results

    def _settled(self, work: SlotWork, slot: Slot, values: list[Tensor]) -> SlotResult:
        place = self._places.get(work.slot)
        if place is None or slot.pooling is None:
            return SlotResult(work.slot)
        tensor, row = place
        own = (values[tensor] if row is None else values[tensor][row]).clone()
        task = slot.pooling.task
        if task != "align" and task in self.row_heads:
            made = self.row_heads[task](own, slot.token_ids, slot.pooling)
            return SlotResult(work.slot, 0, vectors=made)
        if task == "embed":
            own = self.dense(own)
        return SlotResult(
            work.slot, 0, vectors=as_vectors(finished(own, slot.pooling, self.config))
        )

    def _ends(self, work: SlotWork) -> bool:
        return work.start + work.count == len(self.slots[work.slot].token_ids)


def _token_rows(hidden: Hidden) -> Tensor:
    if hidden.rows is None:
        raise ValueError("the model gives no vector of each token")
    return hidden.rows


class Pool(StepKind[PoolingLaunch]):
    """The kind of step that pools. The code for generation doesn't know it. It has no
    grammars."""

    pools = True

    def __init__(
        self,
        pooler: Pooler,
        slots: Slots,
        *,
        copies: Copies = NO_COPIES,
        features: Iterable[StepFeature] = (),
    ) -> None:
        """`pooler`, `copies` and `features` work on the same queue. Without a KV cache there are no
        copies."""
        super().__init__(pooler.body, slots, copies, features)
        self._pooler = pooler

    def launch(self, scheduled: list[SlotWork], start: StepStart) -> PoolingLaunch:
        launched = self._pooler.launch(scheduled, self.slots)
        start.timeline.passed("forward")
        return launched

    def settle(self, queued: PoolingLaunch, guard: Guard) -> dict[int, SlotResult]:
        with torch.inference_mode():
            return guard(queued.settle)


def pooling_runner(
    prepared: PreparedModel,
    setup: Setup,
    body: Body,
    head: Head | None,
    blocks: int,
    phases: Phases,
    *,
    shares: int | None,
    kv_groups: tuple[KVGroup, ...] = ONE_GROUP,
    copies: Copies = NO_COPIES,
    media: MediaEncodings | None = None,
    adapters: PoolAdapters | None = None,
) -> StepRunner[Any]:
    """Returns what computes steps of a pooling model. `shares`: of a step, that are computed at
    once on the CPU; None: the model's steps are queued on a device. `media`: None for a model that
    takes none."""
    if setup.pooling is None:
        raise ValueError("the setup is of a model that generates")
    adapters = adapters or PoolAdapters()
    if media is not None:
        phases.time(media, "encode", "encode")
    # In their order (see StepFeature).
    features = [feature for feature in (media, adapters.steps) if feature is not None]
    slots = Slots(SlotBounds.of(setup, prepared.config.vocab_size, blocks, kv_groups))
    if shares is not None:
        body = phases.watch(body, "hidden", "forward")
        copies = phases.watch(copies, "make", "copies")
    row_heads = load_row_heads(prepared, setup.pooling)
    pooler = Pooler(body, head, setup.pooling, adapters=adapters, row_heads=row_heads)
    kind = Pool(pooler, slots, copies=copies, features=features)
    queue = queue_of(body.device)
    if shares is None:
        return StepRunner(queue, kind, phases=phases)
    return StepRunner(queue, kind, threads=ShareThreads(shares) if shares > 1 else None)
