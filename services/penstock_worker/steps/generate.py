"""Executes plans on a device that works behind a queue, which is never left empty.

`begin` queues a whole step and returns: nothing in it waits for the device, but for the few things
that the device can't do by itself (below).  A step may be begun while earlier ones are pending: the
slots go ahead of the device, with a placeholder for each token that it has not chosen yet, and
`forward.newest` is where it finds that token itself.  `result` brings the slots level with it.

What needs the host waits for the steps before, but after the forward pass was queued: rules that
have to know of the last token (bad words, the masks of grammars).

The charter of `penstock_worker.steps.host_runner` holds here too; how a step is begun and
collected is in `plan_runner`.
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
from penstock_worker.device.queue import DeviceQueue, queue_of
from penstock_worker.forward.interface import DeviceForward
from penstock_worker.grammar import SlotGrammars
from penstock_worker.metrics.phases import UNWATCHED, Phases
from penstock_worker.sampler import SampledToken, SampleRequest
from penstock_worker.sampler.queued import DeviceSampler
from penstock_worker.steps.attempts import attempt, computable, failure
from penstock_worker.steps.begun import BegunStep
from penstock_worker.steps.errors import StepLost
from penstock_worker.steps.guard import Value
from penstock_worker.steps.launch import Launch
from penstock_worker.steps.prompt_logprobs import QueuedPromptLogprobs
from penstock_worker.steps.runner import DevicePlanRunner
from penstock_worker.steps.sampling import ask_of, sampling_rows
from penstock_worker.steps.timeline import StepTimeline

log = logs.get(__name__)


class DeviceRunner(DevicePlanRunner[Launch]):
    """forward, sampler and copies work on one queue, and agree on KV blocks and slots.

    together: other ranks compute the same steps.  Then nothing is tried again, as they wouldn't
    follow: what fails comes out of `begin` or `result`.  And a slot that has failed is computed
    like any other until it is released: others may hear of its failure a step later.
    check: raises where what the device has computed means nothing; asked after waiting for it.
    grammars: as Runner's.  queue: None: the one of torch's calls for the device.
    """

    def __init__(
        self,
        forward: DeviceForward,
        sampler: DeviceSampler,
        slots: Slots,
        *,
        copies: Copies,
        grammars: SlotGrammars | None = None,
        together: bool = False,
        check: Callable[[], None] = lambda: None,
        queue: DeviceQueue | None = None,
        phases: Phases = UNWATCHED,
    ) -> None:
        queue = queue or queue_of(forward.device)
        super().__init__(forward, slots, grammars or SlotGrammars(), queue, phases)
        self._forward = forward
        self._sampler = sampler
        self._copies = copies
        self._together = together
        self._check = check
        self._prompts = QueuedPromptLogprobs(slots, sampler)
        self._sent: tuple[list[int], Tensor | None] = ([], None)

    def reset(self) -> None:
        for number in self._slots:
            self._sampler.forget(number)
        super().reset()

    # ---- queueing

    def _launches(self, plan: Plan, timeline: StepTimeline) -> list[Launch]:
        works = computable(plan, self._slots, together=self._together)
        if not works:
            return []
        if self._together:
            return [self._queue_works(works, timeline)]
        return attempt(works, lambda part: self._launch(part, timeline), self._slots)

    def _prepare(self, plan: Plan) -> None:
        self._copies.make(plan.copies)
        self._slots.apply(plan)
        self.grammars.apply(plan)
        for number in plan.released:
            self._sampler.forget(number)

    def _launch(self, works: list[SlotWork], timeline: StepTimeline) -> Launch:
        """Queues these works. Where that fails, all is as if it had not been tried."""
        try:
            return self._guarded(lambda: self._queue_works(works, timeline))
        except StepLost:
            raise
        except Exception:
            self._collect_all()  # The rules know of all tokens then, which the sampler may ask for.
            for work in works:
                self._sampler.forget(work.slot)
            raise

    def _queue_works(self, works: list[SlotWork], timeline: StepTimeline) -> Launch:
        rest, prompts = self._prompts.take(works, self._logits)
        launch = Launch(works, prompts)
        if rest:
            numbers, rows = sampling_rows(self._slots, rest)
            logits = self._logits(rest, rows)
            timeline.passed("forward")
            self._sample(logits, numbers, launch, timeline)
        launch.advance(self._slots)
        return launch

    def _logits(self, works: list[SlotWork], rows: np.ndarray) -> Tensor:
        return self._forward.logits(prepare_inputs(works, self._slots), rows)

    def _sample(
        self, logits: Tensor, numbers: list[int], launch: Launch, timeline: StepTimeline
    ) -> None:
        """The next token of each of these slots; logits: [slots, vocab]."""
        slots = self._slots.at(numbers)
        asks = [ask_of(slot) for slot in slots]
        bound = self.grammars.bound(numbers)
        ruled = [row for row, ask in enumerate(asks) if ask.rules is not None]
        if any(self._slots[number].awaits for number in bound) or any(
            slots[row].awaits and self._sampler.needs_host(asks[row]) for row in ruled
        ):
            self._collect_all()  # A token that the device is to choose must be known first.
        if bound:
            self._mask(asks, numbers, launch)
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
        timeline.passed(None)  # The masks' time is the host's.
        launched = self._sampler.launch(logits, [asks[row] for row in rows], launch.asked)
        self._forward.newest.index_copy_(0, self._numbers(launch.asked), launched.tokens)
        timeline.passed("sample")
        launch.launched = launched

    def _samples(self, slot: Slot) -> bool:
        """Ranks that compute together don't hear of a failure at the same time."""
        return self._together or slot.failed is None

    def _mask(self, asks: list[SampleRequest], numbers: list[int], launch: Launch) -> None:
        """Adds what the slots' grammars allow to their asks, or tells why it can't be had."""
        masks = self.grammars.masks(numbers)
        for row, number in enumerate(numbers):
            mask = masks.get(number)
            if mask is None:
                continue
            if mask.allowed is None:
                launch.known[number] = mask.judge(SampledToken())
            elif self._samples(self._slots[number]):
                launch.masks[number] = mask
                asks[row] = msgspec.structs.replace(asks[row], allowed=mask.allowed)

    def _numbers(self, slots: list[int]) -> Tensor:
        """The slots on the device; they are those of the step before as a rule."""
        known, sent = self._sent
        if sent is None or known != slots:
            sent = self._queue.numbers(slots)
            self._sent = (list(slots), sent)
        return sent

    # ---- results

    def _outcomes(self, step: BegunStep[Launch]) -> dict[int, SlotResult]:
        self._check()
        outcomes: dict[int, SlotResult] = {}
        for launch in step.launches:
            choices, prompts = self._choices(launch), self._prompts_of(launch)
            outcomes |= launch.settle(choices, prompts, self._slots, self.grammars)
        return outcomes

    def _choices(self, launch: Launch) -> list[SampledToken]:
        if launch.launched is None:
            return []

        def failed(error: Exception) -> list[SampledToken]:
            log.error("a step's tokens can't be had", exception=True, slots=len(launch.asked))
            return [SampledToken(error=failure(error))] * len(launch.asked)

        return self._had(launch.launched.choices, failed)

    def _prompts_of(self, launch: Launch) -> dict[int, list[TokenLogprobs]]:
        def failed(error: Exception) -> dict[int, list[TokenLogprobs]]:
            log.error("log-probabilities of prompts can't be had", exception=True)
            launch.prompts.fail(failure(error))
            return {}

        return self._had(launch.prompts.settle, failed)

    def _had(self, call: Callable[[], Value], failed: Callable[[Exception], Value]) -> Value:
        """What `call` gives, after waiting for the device; where it fails for the slots alone, what
        `failed` makes of that."""
        try:
            return self._guarded(call)
        except StepLost:
            raise
        except Exception as error:
            if self._together:
                raise
            return failed(error)
