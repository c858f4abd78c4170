"""The rounds in which drafted tokens are checked, by sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.process import logs
from penstock_worker.batch.logits import Logits
from penstock_worker.batch.slots import Slots
from penstock_worker.device.queue import DeviceQueue
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.sampler import SampledToken, SampleRequest
from penstock_worker.sampler.interface import QueuedSampler, found
from penstock_worker.steps.errors import StepLost
from penstock_worker.steps.launch import DraftedTokens, sample_request
from penstock_worker.steps.torch_context import lacks_device_memory

if TYPE_CHECKING:
    pass

log = logs.get(__name__)


class SampleRows(Protocol):
    """Samples a token from some rows of a step, which are at least one."""

    def __call__(
        self, rows: list[int], requests: list[SampleRequest], slots: list[int]
    ) -> list[SampledToken]: ...


@dataclass(frozen=True)
class LogitsRows:
    """Samples from logits, [rows, vocab]."""

    logits: Logits
    sampler: QueuedSampler
    queue: DeviceQueue

    def __call__(
        self, rows: list[int], requests: list[SampleRequest], slots: list[int]
    ) -> list[SampledToken]:
        following = rows[-1] - rows[0] + 1 == len(rows)
        chosen = slice(rows[0], rows[-1] + 1) if following else self.queue.numbers(rows)
        return self.sampler.launch(self.logits[chosen], requests, slots).sampled()


@dataclass(frozen=True)
class LikeliestRows:
    """Takes the most likely token of each row, where nothing else is asked for."""

    tokens: list[int]

    def __call__(
        self, rows: list[int], requests: list[SampleRequest], slots: list[int]
    ) -> list[SampledToken]:
        return found([self.tokens[row] for row in rows])


class DraftRounds:
    """Samples after drafted tokens.

    A token is a function of the logits in its place and of the tokens before it, so the rule is
    that of tokens without drafts: each round samples one more token of each slot whose newest token
    equals what was drafted in its place, and appends it. So penalties, bad words, grammars and
    everything else that depends on tokens only ever see true ones, and a round is what a step would
    have been.
    """

    def __init__(self, slots: Slots, grammars: SlotGrammars | None, *, together: bool) -> None:
        """`together`: other ranks sample the same."""
        self._slots = slots
        self._grammars = grammars
        self._together = together

    def run(
        self, drafted: Mapping[int, DraftedTokens], sampled: Sequence[int], sample: SampleRows
    ) -> None:
        """Samples until no draft is right any more, and appends to the slots. `sampled`: those that
        got the token before their drafts, which has been appended; the others, whose masks were
        late, have none to compare with. `sample`: of the step's rows, of which the drafts know
        theirs.
        """
        going = self._right(sampled, drafted)
        while going:
            try:
                outcomes = self._round(going, drafted, sample)
            except (StepLost, GroupLost):
                raise
            except Exception as error:
                if self._together or isinstance(error, lacks_device_memory()):
                    raise
                # What was sampled before is true. The next step comes to the same place.
                log.error("drafted tokens can't be checked", exception=True, slots=len(going))
                return
            going = self._right(
                [number for number in going if self._append(number, outcomes, drafted)], drafted
            )

    def _right(self, numbers: Sequence[int], drafted: Mapping[int, DraftedTokens]) -> list[int]:
        slots = self._slots.at(numbers)
        return [
            number
            for number, slot in zip(numbers, slots, strict=True)
            if slot.failed is None and drafted[number].right(slot.token_ids[-1])
        ]

    def _round(
        self, going: list[int], drafted: Mapping[int, DraftedTokens], sample: SampleRows
    ) -> dict[int, SampledToken]:
        """Returns what was sampled for these slots. Those without a mask are left out: their next
        token waits for the next step."""
        requests = {number: sample_request(self._slots[number]) for number in going}
        masks = {} if self._grammars is None else self._grammars.masks(going)
        for number, mask in masks.items():
            if mask.allowed is None:
                del requests[number]
            else:
                requests[number] = _masked(requests[number], mask.allowed)
        if not requests:
            return {}
        numbers = list(requests)
        rows = [drafted[number].first_row + len(drafted[number].more) for number in numbers]
        asked = list(requests.values())
        outcomes = dict(zip(numbers, sample(rows, asked, numbers), strict=True))
        return {
            number: masks[number].judge(each) if number in masks else each
            for number, each in outcomes.items()
        }

    def _append(
        self,
        number: int,
        outcomes: Mapping[int, SampledToken],
        drafted: Mapping[int, DraftedTokens],
    ) -> bool:
        """Returns whether a token was sampled. One that can't be is an error of the next step,
        which comes to the same place."""
        outcome, slot = outcomes.get(number), self._slots[number]
        if outcome is None or outcome.token is None or slot.computed is None:
            return False
        slot.append(outcome.token)
        slot.computed += 1
        if self._grammars is not None:
            self._grammars.advance(number, outcome.token)
        drafted[number].more.append(outcome)
        return True


def _masked(request: SampleRequest, allowed: object) -> SampleRequest:
    return msgspec.structs.replace(request, allowed=allowed)
