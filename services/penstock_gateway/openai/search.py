"""Beam search and best_of over HTTP."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock_gateway.openai.fields import GenerateFields


def check_search(request: GenerateFields) -> None:
    """What can be told without a model. Raises InvalidRequest."""
    n = 1 if request.n is None else request.n
    if request.use_beam_search:
        raise InvalidRequest(
            "use_beam_search is true, which is not supported yet; allowed: false or null",
            param="use_beam_search",
            code="unsupported_value",
        )
    if request.best_of is not None and request.best_of != n:
        raise InvalidRequest(
            f"best_of is {request.best_of}; only the value of n, {n}, is supported",
            param="best_of",
            code="unsupported_value",
        )
