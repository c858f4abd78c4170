"""The model that fake workers compute: it draws each token from a hash of the sequence so far, so
that a test can say beforehand which tokens a sequence gives, however its steps are cut.
"""

from __future__ import annotations

import hashlib

from penstock.protocol.common import Grammar, TokenLogprobs, TokenSampling
from tests.engine.fake_media import Mark

VOCAB = 40
EOS = (0, 7)


def next_token(
    prompt: list[int] | list[Mark],
    emitted: list[int],
    index: int,
    sampling: TokenSampling,
    ends: frozenset[int],
    grammar: Grammar | None = None,
) -> int:
    """The model: a pure function of the sequence. `ends` are held back before min_tokens.

    A grammar's text is a number: so many tokens that aren't EOS, then EOS.
    """
    seed = sampling.seed if sampling.temperature else 0
    text = f"{prompt}|{emitted}|{seed}|{index}"
    token = hashlib.blake2b(text.encode(), digest_size=8).digest()[0] % VOCAB
    if grammar is not None and len(emitted) >= int(grammar.text):
        return EOS[0]
    early = ends if len(emitted) < sampling.min_tokens else frozenset()
    forbidden = early if grammar is None else early | frozenset(EOS)
    while token in forbidden:
        token = (token + 1) % VOCAB
    return token


def told_of(prompt: list[int], at: int) -> TokenLogprobs:
    """What is reported of the prompt's token `at`."""
    return TokenLogprobs(-float(at), tuple(prompt[at - 1 : at + 1]), (-0.5, -0.25))
