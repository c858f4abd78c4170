"""One of several requests that share an answer: what its front end has been sent."""

from __future__ import annotations

from penstock.protocol.to_frontend import SequenceOutput


class Reader:
    """A request of a front end's whose answer is computed along with others'."""

    __slots__ = (
        "accepted",
        "ahead",
        "answer",
        "arrival",
        "cached_due",
        "claim",
        "deadline",
        "gathered",
        "number",
        "open",
        "session",
        "tenant",
        "timed",
    )

    def __init__(
        self, answer: int, session: bytes, number: int, open_ones: list[int], arrival: int
    ) -> None:
        self.answer = answer  # number of what is computed, among those that are shared
        self.session = session  # of the front end that asked
        self.number = number  # by which that front end calls it
        self.open = set(open_ones)  # sequences that it gets more of
        self.arrival = arrival  # among all readers
        self.tenant = ""
        self.claim = b""  # digest of its own; empty for none
        self.accepted = 0.0  # seconds of the engine's clock
        self.deadline: float | None = None  # on the same clock
        self.gathered = False  # nobody reads its tokens as they come
        self.timed = False  # it gets its sequences' timings
        self.cached_due = True  # it must still get the number of cached tokens
        self.ahead: dict[int, int] = {}
        """Tokens that it has of a sequence beyond those that are there, from another engine core:
        it gets no token twice."""

    def of(self, output: SequenceOutput, cached: int | None) -> SequenceOutput | None:
        """What it gains by an output; None: nothing. cached: tokens of the prompt that were found
        in the KV cache; None: not known yet."""
        index, tokens, logprobs = output.sequence, output.tokens, output.logprobs
        if index not in self.open:
            return None
        if self.ahead:
            known = min(self.ahead.get(index, 0), len(tokens))
            self.ahead[index] = self.ahead.get(index, 0) - known
            tokens = tokens[known:]
            logprobs = None if logprobs is None else logprobs[known:]
            if not tokens and output.finish is None and not output.prompt_logprobs:
                return None
        return SequenceOutput(
            self.number,
            index,
            tokens,
            logprobs,
            output.finish,
            output.stop_token,
            output.error,
            self.take_cached_tokens(cached),
            output.error_code,
            output.timeline if self.timed else None,
            output.prompt_logprobs,
            output.drafted,
        )

    def take_cached_tokens(self, cached: int | None) -> int | None:
        """Returns the number of cached tokens, once."""
        found = cached if self.cached_due else None
        self.cached_due = self.cached_due and found is None
        return found
