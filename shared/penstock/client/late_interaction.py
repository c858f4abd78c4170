"""Texts of models for late interaction (ColBERT): queries and documents that are compared token by
token.

Sources: Khattab and Zaharia, "ColBERT", 2020; how pylate fills up queries and leaves out tokens of
documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.errors import InvalidRequest
from penstock.model.pooling_config import LateInteraction

if TYPE_CHECKING:
    from penstock.client.pool_request import PoolResult

Role = Literal["query", "document"]

PRODUCTS_AT_ONCE = 1 << 22
"""Products of two tokens' vectors that are in memory at once, float32."""


class LateInput:
    """A text's tokens as such a model reads them.

    seen: how many of them all tokens see; 0: all.  kept: places of the tokens that are compared;
    None: all are."""

    def __init__(self, ids: list[int], late: LateInteraction, role: Role) -> None:
        """ids: as the tokenizer gives them, with its special tokens. Raises InvalidRequest for a
        document of which nothing would be compared."""
        prefix = late.query_prefix if role == "query" else late.document_prefix
        if prefix is not None:
            ids = [*ids[:1], prefix, *ids[1:]]
        self.prompt_token_ids = ids
        self.seen = 0
        self.kept: tuple[int, ...] | None = None
        if role == "query":
            missing = late.query_length - len(ids)
            if missing > 0:
                self.prompt_token_ids = ids + [late.filling] * missing
                self.seen = 0 if late.sees_filling else len(ids)
        skipped = set() if role == "query" else set(late.skipped)
        first = int(late.skips_first)
        if not first and skipped.isdisjoint(ids):
            return
        whole = enumerate(self.prompt_token_ids)
        kept = tuple(place for place, token in whole if place >= first and token not in skipped)
        self.kept = kept or None
        if not kept and late.alone:
            raise InvalidRequest(
                "the document has only tokens that this model doesn't compare, such as punctuation",
                param="input",
            )


def room_for_text(late: LateInteraction, role: Role, limit: int | None) -> int | None:
    """Tokens that a text is cut to, with its special ones, if an input is cut to `limit`. A query
    is then cut to the length that shorter ones are filled up to."""
    if limit is None:
        return None
    if role == "query" and late.query_length:
        limit = min(limit, late.query_length)
    prefix = late.query_prefix if role == "query" else late.document_prefix
    return limit - (prefix is not None)


def max_sim(query: PoolResult, document: PoolResult) -> float:
    """The sum, over the query's tokens, of the largest product of a token's vector with one of the
    document's. Its bits depend on the two alone."""
    import numpy as np  # Here: gateways that compare nothing do without it.

    one, other = (
        np.frombuffer(each.vectors.data, dtype="<f4").reshape(each.vectors.shape)
        for each in (query, document)
    )
    at_once = max(1, PRODUCTS_AT_ONCE // len(other))
    best = [(one[at : at + at_once] @ other.T).max(axis=1) for at in range(0, len(one), at_once)]
    return float(np.concatenate(best).sum(dtype=np.float64))
