"""How many of an answer's tokens are thoughts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.parsing.registry import ReasoningFormat
    from penstock.text.tokenizer import Tokenizer


def closing_token(thoughts: ReasoningFormat | None, tokenizer: Tokenizer) -> int | None:
    """The token that closes a block of thinking; None where its tag is several."""
    if thoughts is None or thoughts.closing_tag is None:
        return None
    ids = tokenizer.encode(thoughts.closing_tag, add_special=False)
    return ids[0] if len(ids) == 1 else None


class ReasoningTokens:
    """Counts one choice's tokens up to the one that closes its thoughts. Of ids and not of text:
    the count doesn't depend on the pieces in which the answer comes."""

    def __init__(self, closing: int | None) -> None:
        self._closing = closing
        self._open = closing is not None
        self._count = 0
        self.thought = False
        """Whether there were any thoughts: the tag alone closes nothing."""

    def add(self, token_ids: list[int]) -> None:
        """The choice's next tokens."""
        if not self._open:
            return
        if self._closing in token_ids:
            self._open = False
            self._count += token_ids.index(self._closing) + 1
        else:
            self._count += len(token_ids)

    @property
    def total(self) -> int:
        return self._count if self.thought else 0
