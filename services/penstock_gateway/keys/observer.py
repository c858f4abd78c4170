"""Charges tokens to the API key of the request that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.observer import RequestObserver
from penstock_gateway.keys.ring import Caller, current

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest
    from penstock_gateway.keys.rate_limits import RateLimits


class RateLimitObserver:
    """Asks the limits before a prompt is submitted, and charges the output when it has ended."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits

    def request(self, prompt_tokens: int) -> RequestObserver:
        return _Charge(self._limits, current.get(), prompt_tokens)


class _Charge(RequestObserver):
    def __init__(self, limits: RateLimits, caller: Caller, prompt_tokens: int) -> None:
        self._limits = limits
        self._caller = caller
        self._prompt_tokens = prompt_tokens

    async def admit(self) -> None:
        """Raises HTTPError 429 or 503."""
        await self._limits.prompt(self._caller, self._prompt_tokens)

    def ended(self, request: ObservedRequest) -> None:
        self._limits.output(self._caller, request.generated_tokens)
