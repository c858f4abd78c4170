"""A trace's requests as the core gets them."""

from __future__ import annotations

import functools

from penstock.errors import InvalidRequest
from penstock.protocol.common import AdapterFile, Stopping, TokenSampling
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock_engine.simulate.adapters import adapter_of
from penstock_engine.simulate.trace import TraceRequest

VOCAB = 32_768
_FILLER = 3
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


def submit_of(request: TraceRequest, number: int) -> Submit:
    """The message. Tokens that nobody shares begin with the number, so that no two prompts have a
    block in common but those that the trace says."""
    extra = {theirs: getattr(request, ours) for ours, theirs in _OPTIONAL if getattr(request, ours)}
    return Submit(
        number,
        str(number),
        prompt_of(request, number),
        _ALONE,
        _GREEDY,
        _stopping(request.output_tokens),
        adapter=_adapter(request.adapter) if request.adapter else None,
        **extra,
    )


def prompt_of(request: TraceRequest, number: int) -> list[int]:
    """Token ids. Raises InvalidRequest where the trace's own are out of range."""
    given = request.prompt_tokens
    if not isinstance(given, int):
        if min(given) < 0 or max(given) >= VOCAB:
            raise InvalidRequest(f"a trace's token ids lie in 0 to {VOCAB - 1}")
        return given
    name = [number % VOCAB, number // VOCAB % VOCAB, number // VOCAB**2]
    if request.prefix_group is None or not request.prefix_tokens:
        return name[:given] if given < 3 else name + [_FILLER] * (given - 3)
    shared = _prefix(request.prefix_group, min(request.prefix_tokens, given))
    own = given - len(shared)
    return shared + name[:own] + [_FILLER] * (own - 3)


@functools.lru_cache(maxsize=1024)
def _prefix(group: int, length: int) -> list[int]:
    return [(group * 7919 + at * 31) % VOCAB for at in range(length)]


@functools.lru_cache(maxsize=4096)
def _adapter(name: str) -> AdapterFile:
    return adapter_of(name)


@functools.lru_cache(maxsize=4096)
def _stopping(output_tokens: int) -> Stopping:
    return Stopping(max_tokens=output_tokens, ignore_eos=True)
