"""How far a sequence is: what it has, what is computed of it, and what is under way."""

from __future__ import annotations


class SequenceProgress:
    """Counts of one sequence's tokens, and the steps that serve it.

    Between steps these hold, and for a sequence that runs always:

        0 <= computed <= scheduled <= expected
        tokens <= expected <= tokens + in_flight

    A step that is planned moves `scheduled` on, and where that reaches `expected` it samples: so
    `expected` moves one ahead.  When it is settled, `computed` follows, and `tokens` if one came.

    Behind the token that it samples, a step may compute `drafts` that may turn out to be the next
    ones.  Nothing follows it before it is settled; then those that did count in all four.
    """

    __slots__ = (
        "computed",
        "deferrals",
        "drafts",
        "expected",
        "in_flight",
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
        """Nothing is computed of it, and no step is under way."""
        self.tokens = num_prompt + num_emitted  # that it has, prompt and emitted
        self.expected = self.tokens  # the same, once every step in flight is settled without an end
        self.computed = 0  # tokens with KV, by settled steps
        self.scheduled = 0  # the same, once every step in flight is settled
        self.drafts = 0  # tokens that the step in flight may compute behind `scheduled`
        self.last_step = 0  # number of the step that served it last; 0: none did
        self.last_place = 0  # its place in that step, from 1
        self.deferrals = 0  # steps in a row that gave no token because its grammar's mask was late
        self.replayed = num_emitted  # tokens that its grammar must follow before the first mask

    @property
    def last_served(self) -> tuple[int, int]:
        """Orders sequences by when they were served last, the longest unserved first."""
        return self.last_step, self.last_place

    def start(self, computed: int) -> None:
        """It gets a slot, with the KV of so many of its tokens."""
        self.computed = self.scheduled = computed

    def schedule(self, end: int, step: int, place: int, drafts: int = 0) -> bool:
        """A step computes it up to `end`, and drafts behind it. Whether that step samples a token
        of it."""
        samples = end == self.expected
        self.scheduled = end
        self.drafts = drafts
        self.expected += samples
        self.in_flight += 1
        self.last_step = step
        self.last_place = place
        return samples

    def append(self, count: int = 1) -> None:
        """Tokens were sampled: one that was expected, and those behind it that were drafted and
        right, whose predecessors are computed."""
        kept = count - 1
        self.tokens += count
        self.expected += kept
        self.scheduled += kept
        self.deferrals = self.replayed = 0

    def settle(self, end: int, kept: int = 0) -> None:
        """A step up to `end` is settled, in which so many drafts were right."""
        self.computed = end + kept
        if end + kept == self.scheduled:
            self.drafts = 0  # The latest step of it, as nothing follows one with drafts.

    def defer(self, end: int) -> None:
        """No token came: the last of those before `end` is computed again, with its logits.

        Nothing follows such a step.
        """
        self.computed = self.scheduled = end - 1
        self.expected = self.tokens
        self.drafts = 0
        self.deferrals += 1
