"""What stream number `seed` says: a word for each token, known to the worker and to the reader."""

from __future__ import annotations

from penstock.text.tokenizer import Tokenizer

_WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from
or had an they which one you were her all she there would their we him been has when who
will more no if out so said what up its about into than them can only other new some
could time these two may then do first any my now such like our over man me even most
made after also did many before must through back years where much your way well down
should because each just those people how too little state good very make world still
"""
WORDS = tuple(f" {word}" for word in _WORDS.split())
STRIDE = 7
"""Distance between two streams' words, so that a token of another stream is seen."""


def word(seed: int, place: int) -> int:
    """Index in WORDS of the token at `place` of that stream."""
    return (seed * STRIDE + place) % len(WORDS)


def text(seed: int, tokens: int) -> str:
    """All that the stream says."""
    return "".join(WORDS[word(seed, place)] for place in range(tokens))


def token_ids(tokenizer: Tokenizer) -> list[int]:
    """The token of each word. Raises ValueError if some word is several tokens of this model."""
    found = [tokenizer.encode(each) for each in WORDS]
    several = [WORDS[i] for i, ids in enumerate(found) if len(ids) != 1]
    if several:
        raise ValueError(f"not one token in this model: {several}")
    return [ids[0] for ids in found]
