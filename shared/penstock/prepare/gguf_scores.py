"""BPE merges from SentencePiece's scores.

SentencePiece joins, again and again, the neighbours whose joined text is the token with the best
score (Kudo and Richardson, 2018, arXiv:1808.06226).  A list of merges says the same when it is
ordered by the joined token's score: every way to cut a token into two tokens is a merge, and
merges of better tokens come first.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel

MAX_TOKEN_LENGTH = 512
"""Longer tokens are refused: their cuts would take quadratic time."""
MAX_CHARACTERS = 1 << 23
"""Most characters of all tokens together. A vocabulary of 262,144 tokens has some two million."""


def merges_from_scores(
    tokens: list[str | None], scores: list[float], where: str
) -> list[tuple[str, str]]:
    """Merges, best first.

    tokens: text by id; None for those that merges neither make nor use.  scores: one for each.
    """
    if sum(len(token) for token in tokens if token) > MAX_CHARACTERS:
        raise UnsupportedModel(
            f"{where}: the vocabulary's tokens have more than {MAX_CHARACTERS} characters together"
        )
    known = {token for token in tokens if token}
    order = sorted(
        (i for i, token in enumerate(tokens) if token and len(token) > 1),
        key=lambda i: (-scores[i], i),
    )
    merges: list[tuple[str, str]] = []
    for i in order:
        token = tokens[i]
        if token is None:
            continue
        if len(token) > MAX_TOKEN_LENGTH:
            raise UnsupportedModel(
                f"{where}: token {i} has {len(token)} characters; "
                f"at most {MAX_TOKEN_LENGTH} are allowed"
            )
        for cut in range(1, len(token)):
            left = token[:cut]
            if left in known and token[cut:] in known:
                merges.append((left, token[cut:]))
    return merges
