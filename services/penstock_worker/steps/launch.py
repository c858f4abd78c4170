"""Works of a step that were queued together, from then until their tokens are known."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.grammar import SlotGrammars
from penstock_worker.grammar.mask import Mask
from penstock_worker.sampler import SampledToken
from penstock_worker.sampler.queued import Launched
from penstock_worker.steps.prompt_logprobs import PromptScores
from penstock_worker.steps.sampling import told


@dataclass
class Launch:
    """prompts: log-probabilities of prompts.  known: choices that were made without the
    device, by slot.  asked: slots whose tokens the device chooses, in the order of its rows.
    masks: of those that have a grammar."""

    works: list[SlotWork]
    prompts: PromptScores
    known: dict[int, SampledToken] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    masks: dict[int, Mask] = field(default_factory=dict)
    launched: Launched | None = None

    def __post_init__(self) -> None:
        self._places: dict[int, int] = {}
        self._slots: list[Slot] = []

    def advance(self, slots: Slots) -> None:
        """All of it is queued: the slots get ahead of the device."""
        self._slots = slots.of(self.works)
        for work, slot in zip(self.works, self._slots, strict=True):
            slot.computed = work.start + work.count
        for number, choice in self.known.items():
            slot = slots[number]
            if choice.deferred and slot.computed is not None:
                slot.computed -= 1  # Its logits are wanted again.
            slot.failed = slot.failed or choice.error
        for number, slot in zip(self.asked, slots.at(self.asked), strict=True):
            self._places[number] = slot.expect(number)

    def settle(
        self,
        choices: list[SampledToken],
        prompts: dict[int, list[TokenLogprobs]],
        slots: Slots,
        grammars: SlotGrammars,
    ) -> dict[int, SlotResult]:
        """Brings the slots level with the device. choices: of `asked`.  prompts: what `prompts`
        gave.  What each work gave, but for those of slots that have failed before, be it in an
        earlier step or in their prompt."""
        chosen = self._judged(choices)
        bound = grammars.bound(self.asked)
        results: dict[int, SlotResult] = {}
        for work, slot in zip(self.works, self._slots, strict=True):
            number = work.slot
            if slot.failed is not None and number not in self.known:
                continue
            choice = chosen.get(number)
            results[number] = told(work, choice, prompts.get(number))
            place = self._places.get(number)
            if place is None or choice is None:
                continue
            if choice.token is None:
                slot.failed = choice.error
                continue
            slot.fill(place, choice.token)
            if number in bound and slots.holds(number, slot):
                grammars.advance(number, choice.token)
        return results

    def _judged(self, choices: list[SampledToken]) -> dict[int, SampledToken]:
        chosen = dict(zip(self.asked, choices, strict=True))
        if not self.masks and not self.known:
            return chosen
        judged = {number: mask.judge(chosen[number]) for number, mask in self.masks.items()}
        return self.known | chosen | judged
