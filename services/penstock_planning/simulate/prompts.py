"""A trace's requests as the core gets them."""

from __future__ import annotations

import functools
import hashlib
from typing import Literal

from penstock.errors import InvalidRequest
from penstock.protocol.common import AdapterFile, SessionTerms, Stopping, TokenSampling
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock_planning.simulate.adapters import adapter_of
from penstock_planning.simulate.trace import VOCAB, TraceRequest

_FILLER = 3
ANSWER = 5
"""The token that every answer is made of."""

Told = Literal["nothing", "sessions", "hints"]
"""What the core learns about sessions: nothing, their names, or also when they will be back."""
_ALONE = [OpenSequence(0)]
_GREEDY = TokenSampling(seed=0, temperature=0.0)
_OPTIONAL = tuple(
    (ours, theirs)
    for ours, theirs in (
        ("tenant", "tenant"),
        ("priority", "priority"),
        ("deadline_ms", "time_left_ms"),
    )
    if theirs in Submit.__struct_fields__
)
"""What a Submit of this version can say of a request besides its tokens: (trace's, Submit's)."""


def submit_of(request: TraceRequest, number: int, told: Told = "sessions") -> Submit:
    """Returns the message. Tokens that nobody shares begin with the number, so that prompts have
    only those blocks in common that the trace says. told: what is sent of the request's session."""
    extra = {theirs: getattr(request, ours) for ours, theirs in _OPTIONAL if getattr(request, ours)}
    return Submit(
        number,
        str(number),
        prompt_of(request, number),
        _ALONE,
        _GREEDY,
        _stopping(request.output_tokens),
        adapter=_adapter(request.adapter) if request.adapter else None,
        session=_session(request, told),
        **extra,
    )


def _session(request: TraceRequest, told: Told) -> SessionTerms | None:
    if not request.session or request.unnamed or told == "nothing":
        return None
    within = request.resume_within if told == "hints" else None
    return SessionTerms(request.session, resume_within_s=within)


def prompt_of(request: TraceRequest, number: int) -> list[int]:
    """Token ids. Raises InvalidRequest where the trace's own are out of range."""
    given = request.prompt_tokens
    if not isinstance(given, int):
        if min(given) < 0 or max(given) >= VOCAB:
            raise InvalidRequest(f"a trace's token ids must be in 0 to {VOCAB - 1}")
        return given
    name = [number % VOCAB, number // VOCAB % VOCAB, number // VOCAB**2]
    if request.session:
        # All that follows the session's name looks like answers, so that a turn begins with what
        # the one before it ended with.
        named = hashlib.blake2b(request.session.encode(), digest_size=6).digest()
        name = [int.from_bytes(named[at : at + 2], "big") % VOCAB for at in (0, 2, 4)]
    filler = ANSWER if request.session else _FILLER
    if request.prefix_group is None or not request.prefix_tokens:
        return name[:given] if given < 3 else name + [filler] * (given - 3)
    shared = _prefix(request.prefix_group, min(request.prefix_tokens, given))
    own = given - len(shared)
    return shared + name[:own] + [filler] * (own - 3)


@functools.lru_cache(maxsize=1024)
def _prefix(group: int, length: int) -> list[int]:
    return [(group * 7919 + at * 31) % VOCAB for at in range(length)]


@functools.lru_cache(maxsize=4096)
def _adapter(name: str) -> AdapterFile:
    return adapter_of(name)


@functools.lru_cache(maxsize=4096)
def _stopping(output_tokens: int) -> Stopping:
    return Stopping(max_tokens=output_tokens, ignore_eos=True)
