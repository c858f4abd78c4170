"""Types that more than one direction uses."""

from __future__ import annotations

from typing import Literal

import msgspec

HIGHEST_PRIORITY = -100
LOWEST_PRIORITY = 100
"""As in vLLM, the lower value is served earlier.  Bounded, because priority ages: a request is
overtaken by a bounded number of later ones."""

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]

ErrorCode = Literal["invalid_grammar", "complex_grammar", "no_token_left"]
"""Errors that are the request's own doing: a grammar that can't be compiled; one that takes too
long to compile, or whose masks take too long or meet the matcher's limits; allowed_token_ids and
bad_words that leave no token to choose."""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """What a tenant may have.

    weight: of its share.  max_requests: open at once; None: any number.
    highest_priority: the lowest value that it may ask for.
    """

    weight: int = 1
    max_requests: int | None = None
    highest_priority: int = HIGHEST_PRIORITY


GRANT_RANGES = {
    "weight": (1, 1000),
    "max_requests": (1, 1_000_000),
    "highest_priority": (HIGHEST_PRIORITY, LOWEST_PRIORITY),
}
"""What its numbers may be, both ends included."""

GrammarKind = Literal[
    "json_schema", "json_object", "regex", "choice", "lark", "gbnf", "structural_tag"
]


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """What an output must look like.

    text: a JSON schema, nothing (json_object), a regular expression for the whole output, a JSON
    array of strings (choice), a grammar in llguidance's dialect of Lark or in llama.cpp's GBNF, or
    a structural tag as JSON, in either of vLLM's shapes.
    """

    kind: GrammarKind
    text: str = ""


class LogitsAdjustments(msgspec.Struct, frozen=True, array_like=True):
    """What changes a row's logits, and depends on the request or its tokens. See SamplingParams.

    presence, frequency, repetition: penalties; 0, 0 and 1 are off.
    bias: by token id.  allowed: ids, ascending; None: all.
    bad_words: sequences of ids.  The last of one can't be chosen where the output ends in the
    others.
    """

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: dict[int, float] = {}
    allowed: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()


class TokenSampling(msgspec.Struct, frozen=True, array_like=True):
    """What the worker needs to choose one sequence's next token.

    seed: 0 <= seed < 2**64.  The draw for token i of sequence c depends on (seed, c, i) alone.
    top_k: 0 is off.  logprobs: None, or the number of top alternatives.
    min_tokens, held_back: ids in `held_back` (EOS and stop ids) can't be drawn until min_tokens
    tokens have been emitted.
    adjustments: None where none is asked for: most messages are short.
    prompt_logprobs: None, or the number of top alternatives for each token of the prompt.
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    logprobs: int | None = None
    min_tokens: int = 0
    held_back: tuple[int, ...] = ()
    adjustments: LogitsAdjustments | None = None
    prompt_logprobs: int | None = None


class Stopping(msgspec.Struct, frozen=True, array_like=True):
    """When the engine ends a sequence. Stop strings are the front end's: it sends Finish.

    max_tokens: tokens to emit at most, the resumed ones included.
    ignore_eos: the model's EOS ids don't end it; stop_token_ids still do.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position, of the raw distribution (before any penalty, cut or
    temperature), natural log, float32 values.  An impossible token is -1e30, not -inf.

    logprob: of the token that was emitted.
    top_ids, top_logprobs: the most likely tokens, likeliest first, ties by lower id.
    """

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


PoolingTask = Literal["embed", "token_embed", "classify"]


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    """What is wanted of a model that gives vectors instead of text.

    task: embed, one vector for the input; token_embed, one for each token; classify, a score for
    each label.
    token_types: one byte for each token (which text of a pair it belongs to); empty: all 0.
    dimensions: numbers that are kept of an embedding, the first ones; None: all.
    normalize: to length 1, after that.  activate: scores as the head's activation makes them of
    its numbers; else the numbers.  None: as the model has it.
    """

    task: PoolingTask
    token_types: bytes = b""
    dimensions: int | None = None
    normalize: bool | None = None
    activate: bool | None = None


class Vectors(msgspec.Struct, frozen=True, array_like=True):
    """shape: (size,), or (tokens, size).  data: float32, little-endian, row by row.

    Who receives it checks the product before use (`is_sound`).
    """

    shape: tuple[int, ...]
    data: bytes

    def is_sound(self) -> bool:
        """Whether there are as many bytes as the shape says."""
        count = 1
        for size in self.shape:
            if size < 1:
                return False
            count *= size
        return 1 <= len(self.shape) <= 2 and len(self.data) == 4 * count
