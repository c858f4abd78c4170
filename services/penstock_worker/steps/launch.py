"""Works of a step that are queued together, from the rows that are sampled until their tokens are
known and reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from penstock.protocol.common import TokenLogprobs, Vectors
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.inputs import NO_DRAFTS, Drafts
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.grammar.mask import Mask
from penstock_worker.sampler import SampledToken, SampleRequest
from penstock_worker.sampler.interface import QueuedSamples
from penstock_worker.steps.prompt_logprobs import PromptScores


def sampling_rows(
    slots: Slots, scheduled: list[SlotWork], drafts: Drafts = NO_DRAFTS
) -> tuple[list[int], np.ndarray]:
    """Returns (slots to sample, the batch row of each): those whose work reaches the end of their
    tokens. After these, in the same order of slots, come the rows of what is drafted."""
    # Not by numpy: of few numbers, its operations take longer than a loop.
    numbers: list[int] = []
    rows: list[int] = []
    drafted: list[int] = []
    end = 0
    for work, slot in zip(scheduled, slots.of(scheduled), strict=True):
        end += work.count
        if work.start + work.count != len(slot.token_ids):
            continue
        numbers.append(work.slot)
        rows.append(end - 1)
        if work.slot in drafts:
            count = len(drafts[work.slot])
            drafted += range(end, end + count)
            end += count
    return numbers, np.array(rows + drafted, dtype=np.int64)


def sample_request(slot: Slot) -> SampleRequest:
    """Returns the request for the slot's next token, without its grammar mask."""
    emitted = len(slot.token_ids) - slot.num_prompt
    return SampleRequest(slot.sampling, slot.index, emitted, None, slot.adjustments)


def reported(
    work: SlotWork,
    sampled: SampledToken | None,
    prompt: list[TokenLogprobs] | None,
    vectors: Vectors | None = None,
) -> SlotResult:
    """Returns the result of a work for the engine core.

    `sampled` is None where no token was due. `prompt` has log-probabilities of the prompt's tokens.
    A token stands for `vectors`, where there are some.
    """
    if sampled is None:
        return SlotResult(work.slot, prompt_logprobs=prompt)
    if sampled.token is not None:
        return SlotResult(
            work.slot, sampled.token, sampled.logprobs, prompt_logprobs=prompt, vectors=vectors
        )
    if sampled.deferred:
        return SlotResult(work.slot, deferred=True, prompt_logprobs=prompt)
    return SlotResult(work.slot, error=sampled.error, error_code=sampled.error_code)


@dataclass
class DraftedTokens:
    """The drafts after a slot's tokens, and what has become of them."""

    ids: Sequence[int]
    first_row: int
    """The row of the logits that follow its first id; those after the other ids come next."""
    more: list[SampledToken] = field(default_factory=list)
    """Tokens after the one that every step samples: each was sampled after ids that were
    right."""

    def right(self, newest: int) -> bool:
        """Returns whether the next id is the token that was sampled in its place."""
        return len(self.more) < len(self.ids) and self.ids[len(self.more)] == newest

    def added_to(self, result: SlotResult) -> SlotResult:
        """Returns the slot's result with the accepted drafts' tokens and log-probabilities."""
        logprobs: list[TokenLogprobs] = [each.logprobs for each in self.more if each.logprobs]
        return msgspec.structs.replace(
            result,
            more=[each.token for each in self.more if each.token is not None],
            more_logprobs=logprobs or None,
            drafted=len(self.ids),
        )


def drafted_tokens(numbers: Sequence[int], drafts: Drafts) -> dict[int, DraftedTokens]:
    """Returns what is drafted, by slot. `numbers`: the slots whose logits stand first, a row each,
    before those of the drafts in the same order (see sampling_rows)."""
    found: dict[int, DraftedTokens] = {}
    row = len(numbers)
    for number in numbers:
        if number in drafts:
            found[number] = DraftedTokens(drafts[number], row)
            row += len(drafts[number])
    return found


@dataclass
class Launch:
    """The outcome of one forward pass and one sampler call, as far as it is known."""

    scheduled: list[SlotWork]
    prompts: PromptScores = field(default_factory=PromptScores)
    """Log-probabilities of the prompts' own tokens."""
    wants_proposed: bool = True
    """Whether its results are to say what could be drafted next (Plan.wants_proposed)."""
    known: dict[int, SampledToken] = field(default_factory=dict)
    """Outcomes that the host knows already, by slot: deferrals and errors, and on a CPU every
    token."""
    asked: list[int] = field(default_factory=list)
    """Slots whose tokens are being sampled, in the order of the sampler's rows."""
    masks: dict[int, Mask] = field(default_factory=dict)
    """Grammar masks of those in `asked` that have a grammar, by slot."""
    samples: QueuedSamples | None = None
    """The tokens of `asked`, in its order."""
    drafted: dict[int, DraftedTokens] = field(default_factory=dict)
    """What was drafted, by slot. All tokens are known then."""

    vectors: dict[int, Vectors] = field(default_factory=dict)
    """Vectors that were asked for in place of a token, by slot; a token in `known` stands for
    each."""

    def __post_init__(self) -> None:
        self._placeholders: dict[int, int] = {}
        self._slots: list[Slot] = []

    def slots(self) -> dict[int, Slot]:
        """Returns the slots of the works, by number, as they were when the step was started."""
        return {work.slot: slot for work, slot in zip(self.scheduled, self._slots, strict=True)}

    def know_all(self, slots: Slots) -> None:
        """Waits for all results, and moves them to `known`: on a CPU, which has them, and where
        drafts are to be checked. A slot whose prompt has failed gets no token."""
        self.prompts.settle()
        sampled = [] if self.samples is None else self.samples.sampled()
        everything = self._outcomes(sampled)
        self.known = {n: each for n, each in everything.items() if slots[n].failed is None}
        self.asked, self.masks, self.samples = [], {}, None

    def ahead_of_drafts(self) -> list[int]:
        """Returns the slots with drafts that have got the token before these."""
        return [n for n in self.drafted if n in self.known and self.known[n].token is not None]

    def advance(self, slots: Slots, grammars: SlotGrammars | None) -> None:
        """Called when everything is queued: advances the slots ahead of the device. `grammars`:
        None where no slot has one."""
        self._slots = slots.of(self.scheduled)
        for work, slot in zip(self.scheduled, self._slots, strict=True):
            slot.computed = work.start + work.count
        for number, sampled in self.known.items():
            slot = slots[number]
            if sampled.token is not None:
                slot.append(sampled.token)
                if grammars is not None:
                    grammars.advance(number, sampled.token)
            elif sampled.deferred and slot.computed is not None:
                slot.computed -= 1  # Its last token is computed again, for the logits.
            slot.failed = slot.failed or sampled.error
        for number, slot in zip(self.asked, slots.at(self.asked), strict=True):
            self._placeholders[number] = slot.expect(number)

    def settle(
        self,
        sampled: list[SampledToken],
        prompts: dict[int, list[TokenLogprobs]],
        slots: Slots,
        grammars: SlotGrammars | None,
    ) -> dict[int, SlotResult]:
        """Applies the sampled tokens to the slots, and returns the results by slot.

        `sampled` has the tokens of `asked`, and `prompts` what `self.prompts` gave. Slots that
        failed before, in an earlier step or in their prompt, have no result.
        """
        chosen = self._outcomes(sampled)
        bound = set() if grammars is None else grammars.bound(self.asked)
        results: dict[int, SlotResult] = {}
        for work, slot in zip(self.scheduled, self._slots, strict=True):
            number = work.slot
            if slot.failed is not None and number not in self.known:
                continue
            own = chosen.get(number)
            results[number] = reported(work, own, prompts.get(number), self.vectors.get(number))
            if number in self.drafted:
                results[number] = self.drafted[number].added_to(results[number])
            place = self._placeholders.get(number)
            if place is None or own is None:
                continue
            if own.token is None:
                slot.failed = own.error
                continue
            slot.fill(place, own.token)
            if grammars and number in bound and slots.holds(number, slot):
                grammars.advance(number, own.token)
        return results

    def _outcomes(self, sampled: list[SampledToken]) -> dict[int, SampledToken]:
        chosen = dict(zip(self.asked, sampled, strict=True))
        if not self.masks and not self.known:
            return chosen
        judged = {number: mask.judge(chosen[number]) for number, mask in self.masks.items()}
        return self.known | chosen | judged
