"""How much of what waits will have to be computed, as its KV isn't in the cache."""

from __future__ import annotations


class FreshShare:
    """Share of the tokens of lately started requests that had to be computed: the others' KV was
    found. With exponential decay, by request.

    total_brought, total_found: of all requests, without decay."""

    FADE = 0.98

    def __init__(self) -> None:
        self._computed = self._brought = 0.0
        self.total_brought = self.total_found = 0

    def observe(self, brought: int, found: int) -> None:
        """A request of `brought` tokens started; the KV of `found` of them was there."""
        self._brought = self._brought * self.FADE + brought
        self._computed = self._computed * self.FADE + brought - found
        self.total_brought += brought
        self.total_found += found

    def of(self, tokens: int) -> int:
        """How many of a queue's tokens will have to be computed; all, while nothing is known."""
        if not self._brought:
            return tokens
        return round(tokens * self._computed / self._brought)
