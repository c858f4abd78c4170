"""Steps of a model that generates text, or of its last pipeline stage.

The host runs ahead of the device: for each token that the device has not sampled yet, the slot
holds a placeholder, and the forward pass reads the token itself from `NewestTokens`. On a CPU every
token is known as soon as it is sampled, so there are no placeholders.

Two things need the tokens of earlier steps on the host: some logits adjustments (bad words), and
grammar masks. They wait for these steps, but only after the forward pass has been queued. A step
with drafted tokens waits for its own as well: only then it is known which drafts are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from penstock.process import logs
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.block_copies import Copies
from penstock_worker.batch.inputs import NO_DRAFTS, Drafts
from penstock_worker.batch.logits import Logits
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.device.queue import DeviceQueue
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.grammar.mask import Mask
from penstock_worker.sampler import SampledToken, SampleRequest
from penstock_worker.sampler.interface import HostSamples, QueuedSampler, found
from penstock_worker.speculation.drafting import Drafting
from penstock_worker.steps.drafted import DraftRounds, LikeliestRows, LogitsRows, SampleRows
from penstock_worker.steps.errors import StepLost
from penstock_worker.steps.feature import StepFeature
from penstock_worker.steps.kinds import Guard, StepKind, StepStart, Value
from penstock_worker.steps.launch import Launch, drafted_tokens, sample_request, sampling_rows
from penstock_worker.steps.plans import failure
from penstock_worker.steps.prompt_logprobs import PromptLogprobs
from penstock_worker.steps.sampled_ahead import RowsAhead

if TYPE_CHECKING:
    from torch import Tensor

log = logs.get(__name__)

Likeliest = Callable[[Batch, np.ndarray], np.ndarray]
"""Computes what Forward.logits does, and returns only the most likely tokens: see
LikeliestForward."""


@dataclass(frozen=True)
class Due:
    """Slots whose next token is due."""

    numbers: list[int]
    slots: list[Slot]
    requests: list[SampleRequest]
    bound: set[int]
    """The slots that a grammar binds."""


class Generate(StepKind[Launch]):
    """The kind of step that samples."""

    def __init__(
        self,
        queue: DeviceQueue,
        forward: Forward,
        sampler: QueuedSampler,
        slots: Slots,
        *,
        copies: Copies,
        features: Iterable[StepFeature] = (),
        newest: Tensor | None = None,
        together: bool = False,
        check: Callable[[], None] = lambda: None,
        likeliest: Likeliest | None = None,
    ) -> None:
        """`forward`, `sampler`, `copies` and `features` work on the same queue, and agree on KV
        blocks and slots.

        `newest` is that of a DeviceForward; None means that the host knows each token as soon as it
        is sampled. For `together` and `check` see StepKind. `likeliest`: None where there are
        always logits.
        """
        super().__init__(forward, slots, copies, features)
        self.together = together
        self._queue = queue
        self._forward = forward
        self._likeliest = likeliest
        self._sampler = sampler
        self._check = check
        self._prompts = PromptLogprobs(slots, sampler, self.features)
        self._newest = None if newest is None else NewestTokens(newest, queue)
        self._grammars = self.features.find(SlotGrammars)
        self._drafting = self.features.find(Drafting)
        self._rounds = DraftRounds(slots, self._grammars, together=together)

    def check(self) -> None:
        self._check()

    def launch(self, scheduled: list[SlotWork], start: StepStart) -> Launch:
        launch = Launch(scheduled)
        others, drafts = scheduled, NO_DRAFTS
        for feature in self.features.computing:
            others = feature.compute(others, launch)
        if self._drafting is not None:
            launch.wants_proposed = self._drafting.wants_proposed
            drafts = self._drafts(self._drafting, others, start)
        rest = self._prompts.take(others, self.logits, launch.prompts)
        drafted_from: SampleRows | None = None
        grammars = self._followed()
        if rest:
            numbers, rows = sampling_rows(self.slots, rest, drafts)
            due = self._due(numbers, grammars)
            if self._likeliest is not None and self._wants_likeliest(due):
                tokens = self._likeliest(self._inputs(rest, drafts), rows).tolist()
                start.timeline.passed("forward")
                self._take_likeliest(tokens, due, launch)
                drafted_from = LikeliestRows(tokens)
            else:
                logits = self.logits(rest, rows, drafts)
                start.timeline.passed("forward")
                self._sample(logits[: len(numbers)] if drafts else logits, due, launch, start)
                drafted_from = LogitsRows(logits, self._sampler, self._queue)
            if drafts:
                launch.drafted = drafted_tokens(numbers, drafts)
                if isinstance(drafted_from, LogitsRows) and not self._sampler.in_order:
                    drafted_from = RowsAhead(drafted_from, launch.drafted)
        if self._newest is None or drafts:
            launch.know_all(self.slots)
        launch.advance(self.slots, grammars)
        if launch.drafted and drafted_from is not None:
            self._rounds.run(launch.drafted, launch.ahead_of_drafts(), drafted_from)
            for number, slot in zip(launch.drafted, self.slots.at([*launch.drafted]), strict=True):
                if slot.computed is not None:
                    for feature in self.features.keeping:
                        feature.keep(number, slot.computed)
            start.timeline.passed("sample")
        return launch

    def _drafts(self, drafting: Drafting, scheduled: list[SlotWork], start: StepStart) -> Drafts:
        if self._newest is not None and any(work.draft for work in scheduled):
            start.settle_earlier()  # What comes next is guessed from all tokens before.
        drafts = drafting.drafts(scheduled)
        if drafts:
            for feature in self.features.limiting:
                drafts = feature.fitting(scheduled, drafts)
        return drafts

    def _followed(self) -> SlotGrammars | None:
        """Returns the grammars, where any slot follows one."""
        return self._grammars if self._grammars is not None and self._grammars.count else None

    def undo(self, scheduled: list[SlotWork], start: StepStart) -> None:
        # So that the logits adjustments, which the sampler may read, have seen all tokens.
        start.settle_earlier()
        super().undo(scheduled, start)

    def logits(
        self, scheduled: list[SlotWork], rows: np.ndarray, drafts: Drafts = NO_DRAFTS
    ) -> Logits:
        """Runs one forward pass over all of these works, and what is drafted after them. Returns
        [rows, vocab], the logits of the given rows."""
        return self._forward.logits(self._inputs(scheduled, drafts), rows)

    def _inputs(self, scheduled: list[SlotWork], drafts: Drafts) -> Batch:
        return prepare_inputs(scheduled, self.slots, self.features.extending, drafts)

    def _due(self, numbers: list[int], grammars: SlotGrammars | None) -> Due:
        slots = self.slots.at(numbers)
        requests = [sample_request(slot) for slot in slots]
        bound = set[int]() if grammars is None else grammars.bound(numbers)
        return Due(numbers, slots, requests, bound)

    @staticmethod
    def _wants_likeliest(due: Due) -> bool:
        """Returns whether nothing but the most likely token is needed of any row. After drafted
        tokens, a slot's requests need no more than its first."""
        return not due.bound and all(request.wants_likeliest for request in due.requests)

    def _take_likeliest(self, tokens: list[int], due: Due, launch: Launch) -> None:
        """Takes the most likely tokens of the slots' rows, which come before all others."""
        launch.asked = [
            number
            for number, slot in zip(due.numbers, due.slots, strict=True)
            if number not in launch.known and self._samples(slot)
        ]
        of_slot = dict(zip(due.numbers, tokens, strict=False))
        launch.samples = HostSamples(found([of_slot[number] for number in launch.asked]))

    def _sample(self, logits: Logits, due: Due, launch: Launch, start: StepStart) -> None:
        """Queues the sampling of the tokens that are due. `logits` is [slots, vocab]."""
        numbers, slots, requests = due.numbers, due.slots, due.requests
        if self._needs_tokens(due.bound, slots, requests):
            start.settle_earlier()
        if due.bound and self._grammars is not None:
            self._mask(self._grammars.masks(numbers), requests, numbers, launch)
        rows = [
            row
            for row, (number, slot) in enumerate(zip(numbers, slots, strict=True))
            if number not in launch.known and self._samples(slot)
        ]
        if not rows:
            return
        if len(rows) < len(numbers):
            logits = logits[self._queue.numbers(rows)]
        launch.asked = [numbers[row] for row in rows]
        start.timeline.passed(None)  # Masks are computed on the host, and timed there.
        samples = self._sampler.launch(logits, [requests[row] for row in rows], launch.asked)
        if self._newest is not None:
            self._newest.write(launch.asked, samples.tokens)
        start.timeline.passed("sample")
        launch.samples = samples

    def _needs_tokens(
        self, bound: set[int], slots: list[Slot], requests: list[SampleRequest]
    ) -> bool:
        """Returns whether sampling has to wait until the host knows a token that is still being
        sampled."""
        if any(self.slots[number].awaits for number in bound):
            return True
        return any(
            slot.awaits and self._sampler.needs_host(request)
            for slot, request in zip(slots, requests, strict=True)
            if request.adjustments is not None
        )

    def _samples(self, slot: Slot) -> bool:
        """Returns whether to sample for this slot. With several ranks also for one that has failed,
        because ranks don't learn of a failure at the same time and must sample the same rows."""
        return self.together or slot.failed is None

    def _mask(
        self,
        masks: dict[int, Mask],
        requests: list[SampleRequest],
        numbers: list[int],
        launch: Launch,
    ) -> None:
        """Adds the tokens that grammars allow to the slots' requests. Where a mask can't be had,
        records the deferral or error in `launch.known`."""
        for row, number in enumerate(numbers):
            mask = masks.get(number)
            if mask is None:
                continue
            if mask.allowed is None:
                launch.known[number] = mask.judge(SampledToken())
            elif self._samples(self.slots[number]):
                launch.masks[number] = mask
                requests[row] = msgspec.structs.replace(requests[row], allowed=mask.allowed)

    def settle(self, queued: Launch, guard: Guard) -> dict[int, SlotResult]:
        sampled, prompts = self._sampled(queued, guard), self._prompts_of(queued, guard)
        results = queued.settle(sampled, prompts, self.slots, self._followed())
        if self._drafting is None:
            return results
        return self._drafting.hinted(results, queued.slots, wants_proposed=queued.wants_proposed)

    def _sampled(self, launch: Launch, guard: Guard) -> list[SampledToken]:
        if launch.samples is None:
            return []

        def failed(error: Exception) -> list[SampledToken]:
            log.error("the tokens of a step can't be read", exception=True, slots=len(launch.asked))
            return [SampledToken(error=failure(error))] * len(launch.asked)

        return self._guarded(launch.samples.sampled, failed, guard)

    def _prompts_of(self, launch: Launch, guard: Guard) -> dict[int, list[TokenLogprobs]]:
        def failed(error: Exception) -> dict[int, list[TokenLogprobs]]:
            log.error("the log-probabilities of prompts can't be read", exception=True)
            launch.prompts.fail(failure(error))
            return {}

        return self._guarded(launch.prompts.settle, failed, guard)

    def _guarded(
        self, call: Callable[[], Value], failed: Callable[[Exception], Value], guard: Guard
    ) -> Value:
        """Returns what `call` returns, after waiting for the device. If it fails for these slots
        alone, returns what `failed` makes of the error."""
        try:
            return guard(call)
        except StepLost:
            raise
        except Exception as error:
            if self.together:
                raise
            return failed(error)


class NewestTokens:
    """Writes sampled tokens to `DeviceForward.newest`, through the device's queue."""

    def __init__(self, newest: Tensor, queue: DeviceQueue) -> None:
        self._newest = newest
        self._queue = queue
        self._sent: tuple[list[int], Tensor | None] = ([], None)

    def write(self, slots: list[int], tokens: Tensor) -> None:
        """Queues the update. `tokens` is [slots] int64 on the device, and may not have been
        computed yet."""
        self._newest.index_copy_(0, self._numbers(slots), tokens)

    def _numbers(self, slots: list[int]) -> Tensor:
        """Returns the slot numbers as a tensor on the device. The last one is kept, because the
        slots are mostly those of the step before."""
        known, sent = self._sent
        if sent is None or known != slots:
            sent = torch.as_tensor(self._queue.numbers(slots))
            self._sent = (list(slots), sent)
        return sent
