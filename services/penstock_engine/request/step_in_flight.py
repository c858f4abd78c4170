"""A step that was sent, with the media that it encodes, and what its result has to be."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import PartlyEncoded
from penstock_engine.request.request import Sequence
from penstock_engine.speculation.draft_policy import StepSize


@dataclass(slots=True)
class PlannedMedia:
    """Items that a step encodes, to their end or partly, and drops."""

    encode: list[str] = field(default_factory=list)
    partly: list[PartlyEncoded] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    rows: int = 0
    """Rows of what is encoded; of an item that is encoded partly, in proportion."""
    work: int = 0
    """Work of what is encoded: see MediaReady."""
    needed_by: dict[Sequence, int] = field(default_factory=dict)
    """The running sequences that need these items, and how many tokens each has after the first
    that does. They have a part in the step, with or without tokens."""

    @property
    def encodes(self) -> bool:
        """Whether it is a step even without tokens."""
        return bool(self.encode or self.partly)


NO_MEDIA = PlannedMedia()
"""The media of every step that encodes nothing. Shared: must not be changed."""


class UnfitResult(Exception):
    """A Result that doesn't belong to the oldest step in flight."""


class StepInFlight:
    """A step that was sent, and is not settled."""

    __slots__ = (
        "alone",
        "decodes",
        "drafts",
        "extra_steps",
        "items",
        "least_proposed",
        "media",
        "number",
        "tokens",
        "wants_proposed",
    )

    def __init__(
        self,
        number: int,
        items: list[tuple[Sequence, int, bool]],
        *,
        alone: bool,
        tokens: int,
        decodes: int,
        media: PlannedMedia | None = None,
        drafts: dict[int, int] | None = None,
        wants_proposed: bool = True,
        extra_steps: int = 0,
        least_proposed: int = 0,
    ) -> None:
        self.number = number
        self.items = items
        """(sequence, tokens computed once it is settled, whether it samples), in the plan's order.
        The tokens leave out drafts that were kept: add SequenceProgress.kept."""
        self.alone = alone  # one suspect or a replay has the step to itself
        self.tokens = tokens  # that it computes, drafts included
        self.decodes = decodes  # of these, those of sequences that it gives one
        self.media = media or NO_MEDIA  # that it encodes
        self.drafts = drafts or {}  # by slot, how many tokens it may draft
        self.wants_proposed = wants_proposed  # its result says what could be drafted next
        self.extra_steps = extra_steps  # tokens that each sequence may get after the one it samples
        self.least_proposed = least_proposed  # see Plan

    @property
    def internal(self) -> bool:
        """Whether no front end asked for what it computes."""
        return self.alone and any(sequence.request.internal for sequence, _, _ in self.items)

    def room(self, slot: int) -> int:
        """Tokens that it may compute of a slot after those that were planned."""
        return self.drafts.get(slot, 0) + self.extra_steps

    def passes(self, result: Result) -> int:
        """How many times it has computed its sequences' next tokens."""
        if not self.extra_steps:
            return 1
        return 1 + max(len(outcome.more) for outcome in result.slots)

    def verify(self, result: Result, vocab_size: int) -> None:
        """Raises UnfitResult unless `result` answers these items, one for one."""
        if result.step != self.number:
            raise UnfitResult(
                f"a result for step {result.step}, but step {self.number} is in flight"
            )
        if len(result.slots) != len(self.items):
            raise UnfitResult(
                f"the result of step {self.number} has {len(result.slots)} slots; "
                f"its plan has {len(self.items)}"
            )
        for (sequence, end, samples), outcome in zip(self.items, result.slots, strict=True):
            slot, token = outcome.slot, outcome.token
            if slot != sequence.slot:
                raise UnfitResult(
                    f"the result is for slot {slot}; the plan has slot {sequence.slot}"
                )
            if outcome.error is not None:
                continue
            self._verify_prompt(sequence, end, outcome)
            if outcome.drafted or outcome.more or outcome.proposed:
                verify_drafts(outcome, self.drafts.get(slot, 0), vocab_size, self.extra_steps)
            if outcome.deferred and token is None and samples and sequence.request.grammar:
                continue
            if (token is not None) != samples or outcome.deferred:
                raise UnfitResult(
                    f"slot {slot} should {'' if samples else 'not '}have sampled a token; it "
                    f"returned {token}"
                )
            if token is None:
                continue
            if not 0 <= token < vocab_size:
                raise UnfitResult(
                    f"slot {slot} returned token {token}, not in 0 to {vocab_size - 1}"
                )
            if sequence.request.sampling.logprobs is not None:
                _verify_logprobs(outcome)

    def size(self) -> StepSize:
        """Size of what it computes without drafts."""
        prefill = self.tokens - self.decodes - sum(self.drafts.values())
        return StepSize(self.decodes, prefill)

    def _verify_prompt(self, sequence: Sequence, end: int, outcome: SlotResult) -> None:
        """Each token that is computed gives log-probabilities of the next one of the prompt."""
        if sequence.finished:
            return  # Nothing more is reported of it; so its count stays lower.
        reported = min(end + sequence.progress.kept + 1, len(sequence.request.prompt_token_ids))
        expected = max(0, reported - sequence.prompt_reported)
        given = len(outcome.prompt_logprobs or ())
        if given != expected:
            raise UnfitResult(
                f"slot {outcome.slot} returned {given} log-probabilities of its prompt, not "
                f"{expected}"
            )


def verify_drafts(outcome: SlotResult, most: int, vocab_size: int, extra_steps: int = 0) -> None:
    """Raises UnfitResult unless a result may have so many drafts, and extra steps, at most."""
    slot, more = outcome.slot, outcome.more
    if len(more) > extra_steps and not len(more) <= outcome.drafted <= most:
        raise UnfitResult(
            f"slot {slot} drafted {outcome.drafted} tokens and kept {len(more)}; the limit is "
            f"{most}"
        )
    if more and outcome.token is None:
        raise UnfitResult(f"slot {slot} returned tokens after one that it did not sample")
    wrong = next((token for token in more if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise UnfitResult(f"slot {slot} returned token {wrong}, not in 0 to {vocab_size - 1}")
    if outcome.proposed < 0:
        raise UnfitResult(f"slot {slot} proposes {outcome.proposed} tokens")


def _verify_logprobs(outcome: SlotResult) -> None:
    given = 0 if outcome.logprobs is None else 1 + len(outcome.more_logprobs or ())
    if given != len(outcome.tokens):
        raise UnfitResult(
            f"slot {outcome.slot} returned {given} log-probabilities, which were requested, of"
            f" {len(outcome.tokens)} tokens"
        )
