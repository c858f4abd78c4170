"""Estimates from a body's bytes whether it can be prepared in a turn of the event loop."""

from __future__ import annotations

import re

MOST_MS = 2.0
"""Milliseconds that a body may take in the event loop."""

_BASE = 0.25
"""Milliseconds of the smallest bodies: decoding, checks, sampling parameters."""
_BYTE = 0.00025
"""A byte of a text: 4 bytes are a token, about, and a token takes a microsecond to find."""
_VALUE = 0.004
"""A value of a list or an object, which is checked, and may be a text to tokenise by itself."""
_MANY = re.compile(rb'"(?:n|best_of|n_cmpl)"\s*:\s*(\d{1,9})')
"""Fields that say how often a prompt is answered."""
_STRUCTURE = b",[{"
_OTHERS = bytes(set(range(256)) - set(_STRUCTURE))


def estimated_ms(body: bytes) -> float:
    """Milliseconds, at least about as many as it takes on a processor of 2.5 GHz. Any two lists may
    be multiplied with one another, so values count by the square of their number; what stands in
    texts counts as if it were values."""
    if len(body) * _BYTE > MOST_MS:
        return len(body) * _BYTE
    values = len(body.translate(None, _OTHERS))
    many = max(map(int, _MANY.findall(body)), default=1)
    return _BASE + len(body) * _BYTE + values * _VALUE * (1 + values / 128) + many * 0.01


def is_small(body: bytes) -> bool:
    """Whether it is prepared where it was read."""
    return estimated_ms(body) <= MOST_MS
