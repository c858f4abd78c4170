"""How far a sequence is: what it has, what is computed of it, and what is under way."""

from __future__ import annotations


class SequenceProgress:
    """Counts of one sequence's tokens, and the steps that serve it.

    Between steps these hold, and for a sequence that runs always:

        0 <= computed <= scheduled <= expected
        tokens <= expected <= tokens + in_flight

    A step that is planned moves `scheduled` on, and where that reaches `expected` it samples: so
    `expected` moves one ahead.  When it is settled, `computed` follows, and `tokens` if one came.
    """

    __slots__ = (
        "computed",
        "deferrals",
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

    def schedule(self, end: int, step: int, place: int) -> bool:
        """A step computes it up to `end`. Whether that step samples a token of it."""
        samples = end == self.expected
        self.scheduled = end
        self.expected += samples
        self.in_flight += 1
        self.last_step = step
        self.last_place = place
        return samples

    def append(self) -> None:
        """A token was sampled, which was expected."""
        self.tokens += 1
        self.deferrals = self.replayed = 0

    def defer(self, end: int) -> None:
        """No token came: the last of those before `end` is computed again, with its logits.

        Nothing follows such a step.
        """
        self.computed = self.scheduled = end - 1
        self.expected = self.tokens
        self.deferrals += 1
