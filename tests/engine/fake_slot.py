"""What a fake worker holds of a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from penstock.protocol.common import Grammar
from penstock.protocol.to_worker import NewSequence

WRONG = -1
"""In place of a token that was drafted and is none of the sequence's."""

STATE = -1
"""The row of a block that holds a piece of a checkpoint."""


def like(other: NewSequence, new: NewSequence) -> NewSequence:
    """The new sequence in full, which was admitted as being like the other."""
    prompt = other.tokens[: other.num_prompt]
    assert new.num_prompt == len(prompt)
    return msgspec.structs.replace(
        new,
        tokens=[*prompt, *new.tokens],
        sampling=other.sampling,
        grammar=other.grammar,
        pooling=other.pooling,
        media=other.media,
        adapter=other.adapter,
        like=None,
    )


@dataclass
class Slot:
    new: NewSequence
    tokens: list[int]
    tables: list[list[int]]
    """The block tables of each KV group; NO_BLOCK where it needs none."""
    grammar: Grammar | None = None
    computed: int | None = None
    """None before the first work, which may begin after what was found in the cache."""
    start: int = 0
    """Where the latest work starts."""
    drafts: list[int] = field(default_factory=list)
    """How many drafts each work might have."""
    state: int = 0
    """How many of its tokens its recurrent state stands for."""
    checkpoints: dict[int, list[int]] = field(default_factory=dict)
    """Blocks, by the tokens behind which the state is copied to them."""
    tails: dict[int, list[int]] = field(default_factory=dict)
    """Blocks of copied states that don't lie where each sequence has one, by the tokens before
    them."""
