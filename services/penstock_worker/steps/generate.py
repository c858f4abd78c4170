"""Steps of a model that generates text, or of its last stage.

The slots go ahead of the device, with a placeholder for each token that it has not chosen yet, and
`NewestTokens` is where the forward pass finds that token itself.  On a host every token is known as
soon as it is sampled, so there are no placeholders.

What needs the host waits for the steps before, but after the forward pass was queued: adjustments
that have to know of the last token (bad words), and the masks of grammars.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from torch import Tensor

from penstock import logs
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.block_copies import Copies
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.device.queue import DeviceQueue
from penstock_worker.forward.interface import Forward
from penstock_worker.grammar import SlotGrammars
from penstock_worker.sampler import SampledToken, SampleRequest
from penstock_worker.sampler.queued import QueuedSampler
from penstock_worker.steps.errors import StepLost
from penstock_worker.steps.guard import Guard, Value
from penstock_worker.steps.kinds import StepKind, StepStart
from penstock_worker.steps.launch import Launch
from penstock_worker.steps.newest import NewestTokens
from penstock_worker.steps.plans import failure
from penstock_worker.steps.prompt_logprobs import PromptLogprobs
from penstock_worker.steps.sampling import sample_request, sampling_rows

log = logs.get(__name__)


class Generate(StepKind[Launch]):
    """forward, sampler and copies work on one queue, and agree on KV blocks and slots."""

    def __init__(
        self,
        queue: DeviceQueue,
        forward: Forward,
        sampler: QueuedSampler,
        slots: Slots,
        *,
        copies: Copies,
        grammars: SlotGrammars | None = None,
        newest: Tensor | None = None,
        together: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """newest: a DeviceForward's; None: the host knows each token as soon as it is sampled.
        together, check: see StepKind."""
        super().__init__(forward, slots, copies, grammars or SlotGrammars())
        self.together = together
        self._queue = queue
        self._forward = forward
        self._sampler = sampler
        self._check = check
        self._prompts = PromptLogprobs(slots, sampler)
        self._newest = None if newest is None else NewestTokens(newest, queue)

    def reset(self) -> None:
        for number in self.slots:
            self._sampler.forget(number)
        super().reset()

    def prepare(self, plan: Plan) -> None:
        super().prepare(plan)
        self.grammars.apply(plan)
        for number in plan.released:
            self._sampler.forget(number)

    def check(self) -> None:
        self._check()

    # ---- queueing

    def launch(self, scheduled: list[SlotWork], start: StepStart) -> Launch:
        rest, prompts = self._prompts.take(scheduled, self.logits)
        launch = Launch(scheduled, prompts)
        if rest:
            numbers, rows = sampling_rows(self.slots, rest)
            logits = self.logits(rest, rows)
            start.timeline.passed("forward")
            self._sample(logits, numbers, launch, start)
        if self._newest is None:
            launch.know_all(self.slots)
        launch.advance(self.slots, self.grammars)
        return launch

    def undo(self, scheduled: list[SlotWork], start: StepStart) -> None:
        # The adjustments know of all tokens then, which the sampler may ask for.
        start.settle_earlier()
        for work in scheduled:
            self._sampler.forget(work.slot)

    def logits(self, scheduled: list[SlotWork], rows: np.ndarray) -> Tensor:
        """One forward pass over all of these works; [rows, vocab] of some of their rows."""
        return self._forward.logits(prepare_inputs(scheduled, self.slots), rows)

    def _sample(self, logits: Tensor, numbers: list[int], launch: Launch, start: StepStart) -> None:
        """The next token of each of these slots; logits: [slots, vocab]."""
        slots = self.slots.at(numbers)
        requests = [sample_request(slot) for slot in slots]
        bound = self.grammars.bound(numbers)
        if self._needs_tokens(bound, slots, requests):
            start.settle_earlier()
        if bound:
            self._mask(requests, numbers, launch)
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
        start.timeline.passed(None)  # The masks' time is the host's.
        samples = self._sampler.launch(logits, [requests[row] for row in rows], launch.asked)
        if self._newest is not None:
            self._newest.write(launch.asked, samples.tokens)
        start.timeline.passed("sample")
        launch.samples = samples

    def _needs_tokens(
        self, bound: set[int], slots: list[Slot], requests: list[SampleRequest]
    ) -> bool:
        """Whether a token that the device is to choose must be known first."""
        if any(self.slots[number].awaits for number in bound):
            return True
        return any(
            slot.awaits and self._sampler.needs_host(request)
            for slot, request in zip(slots, requests, strict=True)
            if request.adjustments is not None
        )

    def _samples(self, slot: Slot) -> bool:
        """Ranks that compute together don't hear of a failure at the same time."""
        return self.together or slot.failed is None

    def _mask(self, requests: list[SampleRequest], numbers: list[int], launch: Launch) -> None:
        """Adds what the slots' grammars allow to their requests, or tells why it can't be had."""
        masks = self.grammars.masks(numbers)
        for row, number in enumerate(numbers):
            mask = masks.get(number)
            if mask is None:
                continue
            if mask.allowed is None:
                launch.known[number] = mask.judge(SampledToken())
            elif self._samples(self.slots[number]):
                launch.masks[number] = mask
                requests[row] = msgspec.structs.replace(requests[row], allowed=mask.allowed)

    # ---- results

    def settle(self, queued: Launch, guard: Guard) -> dict[int, SlotResult]:
        sampled, prompts = self._sampled(queued, guard), self._prompts_of(queued, guard)
        return queued.settle(sampled, prompts, self.slots, self.grammars)

    def _sampled(self, launch: Launch, guard: Guard) -> list[SampledToken]:
        if launch.samples is None:
            return []

        def failed(error: Exception) -> list[SampledToken]:
            log.error("a step's tokens can't be had", exception=True, slots=len(launch.asked))
            return [SampledToken(error=failure(error))] * len(launch.asked)

        return self._had(launch.samples.sampled, failed, guard)

    def _prompts_of(self, launch: Launch, guard: Guard) -> dict[int, list[TokenLogprobs]]:
        def failed(error: Exception) -> dict[int, list[TokenLogprobs]]:
            log.error("log-probabilities of prompts can't be had", exception=True)
            launch.prompts.fail(failure(error))
            return {}

        return self._had(launch.prompts.settle, failed, guard)

    def _had(
        self, call: Callable[[], Value], failed: Callable[[Exception], Value], guard: Guard
    ) -> Value:
        """What `call` gives, after waiting for the device; where it fails for the slots alone, what
        `failed` makes of that."""
        try:
            return guard(call)
        except StepLost:
            raise
        except Exception as error:
            if self.together:
                raise
            return failed(error)
