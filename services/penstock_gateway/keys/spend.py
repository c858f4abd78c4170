"""What each API key has used since the process began, for billing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.observer import RequestObserver
from penstock_gateway.keys.ring import current

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest

MAX_KEYS = 1000
"""Keys that are counted by name: the first that asked. The rest is `other`."""
OTHER = "other"


class KeySpend:
    """One key's, since the process began. A prompt counts when it is submitted, an output token
    when it came, so that a stream which goes on for hours is seen meanwhile."""

    __slots__ = ("cached_tokens", "generation_tokens", "prompt_tokens", "prompts")

    def __init__(self) -> None:
        self.prompts = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        """Tokens of the prompts that were found in the KV cache."""
        self.generation_tokens = 0


class SpendObserver:
    """Counts every request with a key. by_key: counts by the key's name."""

    def __init__(self) -> None:
        self.by_key: dict[str, KeySpend] = {}

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        key = current.get().key
        return None if key is None else _Spending(self._of(key.name))

    def _of(self, name: str) -> KeySpend:
        if name not in self.by_key and len(self.by_key) >= MAX_KEYS:
            name = OTHER
        return self.by_key.setdefault(name, KeySpend())


class _Spending(RequestObserver):
    def __init__(self, spend: KeySpend) -> None:
        self._spend = spend

    def submitted(self, request: ObservedRequest) -> None:
        self._spend.prompts += 1
        self._spend.prompt_tokens += request.prompt_tokens

    def delta(self, tokens: int, elapsed: float | None) -> None:
        self._spend.generation_tokens += tokens

    def ended(self, request: ObservedRequest) -> None:
        self._spend.cached_tokens += request.cached_tokens or 0
