"""How a step's token budget is shared between decodes and prefill."""

from __future__ import annotations


class PrefillShare:
    """Decodes are served first, but leave an eighth of the budget to prefill that waits for it.

    One eighth of a small budget is less than a token; what is owed adds up, so with a budget of
    one every eighth step is prefill's.  Decodes get back what prefill leaves over.
    """

    EIGHTHS = 1

    def __init__(self) -> None:
        self._owed = 0

    def decode_limit(self, budget: int, *, prefill_pending: bool) -> int:
        """Tokens of this step's `budget` that decodes may use before prefill has been served."""
        if not prefill_pending:
            return budget
        self._owed += budget * self.EIGHTHS
        reserved, self._owed = divmod(self._owed, 8)
        return budget - reserved
