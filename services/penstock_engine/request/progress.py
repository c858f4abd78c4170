"""How far a sequence is: what it has, what is computed of it, and what is under way."""

from __future__ import annotations


class SequenceProgress:
    """Counts of one sequence's tokens, and the steps that serve it.

    Between steps these hold, and for a sequence that runs always:

        0 <= computed <= scheduled <= expected
        tokens <= expected <= tokens + in_flight

    A step that is planned moves `scheduled` on, and where that reaches `expected` it samples: so
    `expected` moves one ahead.  When it is settled, `computed` follows, and `tokens` if one came.

    After the token that it samples, a step may compute drafts that may turn out to be the next
    ones.  Those that did count in all four once the step is settled.  A step that follows it is
    planned as if none did: it starts where the worker is by then, between `scheduled` and
    `scheduled + drafts`, and the block table has room for the most.
    """

    __slots__ = (
        "computed",
        "deferrals",
        "drafts",
        "expected",
        "in_flight",
        "kept",
        "last_place",
        "last_step",
        "replayed",
        "scheduled",
        "tokens",
    )

    def __init__(self, num_prompt: int, num_emitted: int) -> None:
        self.in_flight = 0  # steps in flight that work on it
        self.restart(num_prompt, num_emitted)

    def restart(self, num_prompt: int, num_emitted: int) -> None:
        """Starts again from the first token, with no step in flight."""
        self.tokens = num_prompt + num_emitted  # that it has, prompt and emitted
        self.expected = self.tokens  # the same, once every step in flight is settled without an end
        self.computed = 0  # tokens with KV, by settled steps
        self.scheduled = 0  # the same, once every step in flight is settled
        self.drafts = 0  # tokens that steps in flight may compute after those that are scheduled
        self.kept = 0  # drafts that were right since it was restarted
        self.last_step = 0  # number of the step that served it last; 0: none did
        self.last_place = 0  # its place in that step, from 1
        self.deferrals = 0  # steps in a row that gave no token because its grammar's mask was late
        self.replayed = num_emitted  # tokens that its grammar must follow before the first mask

    @property
    def last_served(self) -> tuple[int, int]:
        """Orders sequences by when they were served last, the longest unserved first."""
        return self.last_step, self.last_place

    def start(self, computed: int) -> None:
        """Notes that the sequence has got a slot, with the KV of its first `computed` tokens."""
        self.computed = self.scheduled = computed

    def schedule(self, end: int, step: int, place: int, drafts: int = 0) -> bool:
        """A step computes it up to `end`, and drafts after it. Whether that step samples a token
        of it."""
        samples = end == self.expected
        self.scheduled = end
        self.drafts += drafts
        self.expected += samples
        self.in_flight += 1
        self.last_step = step
        self.last_place = place
        return samples

    def append(self, kept: int = 0) -> None:
        """Tokens were sampled: one that was expected, and those after it that were drafted and
        right, whose predecessors are computed."""
        self.tokens += 1 + kept
        if kept:
            self.expected += kept
            self.scheduled += kept
            self.kept += kept
        self.deferrals = self.replayed = 0

    def settle(self, end: int) -> None:
        """A step is settled that computed it up to `end`, drafts that were right included."""
        self.computed = end

    def defer(self, end: int) -> None:
        """No token came: the last of those before `end` is computed again, with its logits.

        Nothing follows such a step.
        """
        self.computed = self.scheduled = end - 1
        self.expected = self.tokens
        self.deferrals += 1
