"""Works of a step that were queued together, until their tokens are known."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.common import TokenLogprobs, Vectors
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.grammar import SlotGrammars
from penstock_worker.grammar.mask import Mask
from penstock_worker.sampler import SampledToken
from penstock_worker.sampler.queued import QueuedSamples
from penstock_worker.steps.drafted import DraftedTokens
from penstock_worker.steps.prompt_logprobs import PromptScores
from penstock_worker.steps.sampling import reported


@dataclass
class Launch:
    """The outcome of one forward pass and one sampler call, as far as it is known."""

    scheduled: list[SlotWork]
    prompts: PromptScores = field(default_factory=PromptScores)
    """Log-probabilities of the prompts' own tokens."""
    looks: bool = True
    """Whether its results are to say what could be drafted next (Plan.looks)."""
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
                results[number] = self.drafted[number].told(results[number])
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
