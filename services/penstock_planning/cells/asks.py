"""Requests of a simulation of cells, and what became of them."""

from __future__ import annotations

import msgspec

from penstock.client.routing import AFFINITY_TOKENS, RoutingRequest
from penstock_planning.simulate.prompts import prompt_of
from penstock_planning.simulate.trace import TraceRequest


class Ask:
    """A request under way.

    arrival, first, last: when it came, and when its first and last token did.  emitted: tokens of
    its answer that its client has.  cached: prompt tokens that were found where it ran first.
    moves: how often it went on at another engine core.
    """

    __slots__ = (
        "arrival",
        "cached",
        "emitted",
        "first",
        "last",
        "moves",
        "number",
        "request",
    )

    def __init__(self, request: TraceRequest, number: int, arrival: float) -> None:
        self.request = request
        self.number = number
        self.arrival = arrival
        self.first = self.last = 0.0
        self.emitted = self.cached = self.moves = 0

    @property
    def length(self) -> int:
        """Tokens to be there before the next one can be sampled."""
        return self.request.num_prompt + self.emitted

    @property
    def left(self) -> int:
        """Tokens of its answer that are still to come."""
        return self.request.output_tokens - self.emitted


def placed_by(ask: Ask) -> RoutingRequest:
    """What a gateway would choose an engine core by, with the tokens of the prompt that count."""
    request = ask.request
    tokens = request.prompt_tokens
    if isinstance(tokens, int) and tokens > AFFINITY_TOKENS:
        request = msgspec.structs.replace(request, prompt_tokens=AFFINITY_TOKENS)
    session = "" if request.unnamed else request.session
    prompt = prompt_of(request, ask.number)
    return RoutingRequest(prompt, AFFINITY_TOKENS, request.tenant, session=session)
