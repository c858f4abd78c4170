"""Types that messages of several directions use."""

from __future__ import annotations

import sys
import typing
from array import array
from typing import Literal

import msgspec

if typing.TYPE_CHECKING:
    Bytes = bytes | memoryview
else:
    Bytes = memoryview  # Which msgspec decodes without a copy.


HIGHEST_PRIORITY = -100


LOWEST_PRIORITY = 100
"""Bounds of a priority. As in vLLM, a lower value is served earlier. The range is bounded because
waiting requests age: only a bounded number of later requests can overtake one."""


BACKGROUND_LEVELS = LOWEST_PRIORITY - HIGHEST_PRIORITY
"""How many levels lower than its priority says a request in the background stands: below all
others of its time."""


FinishReason = Literal["stop", "length", "repetition", "abort", "timeout", "error"]


ErrorCode = Literal[
    "invalid_grammar",
    "complex_grammar",
    "grammar_mismatch",
    "no_token_left",
    "invalid_media",
    "invalid_adapter",
    "unavailable",
]
"""Errors that the request itself causes: a grammar that can't be compiled; a grammar that takes too
long to compile, whose masks take too long, or that exceeds the matcher's limits; emitted tokens, as
of a forged receipt, that their grammar doesn't allow; allowed_token_ids, bad_words and a budget of
thoughts that leave no token to sample; a picture, sound or video that can't be encoded; an adapter
that can't be loaded, or doesn't fit the model. The last one is no fault of the request: what it
needs can't be had now."""


CallCode = Literal["", "invalid", "failed", "timed_out", "unavailable"]
"""What became of a call of a worker extension: it was done; there is no such method, or its
arguments don't fit; it raised; its time was over before it began; the worker is gone."""


MAX_CALL_BYTES = 32 * 2**20
"""Most bytes of a call's arguments, and of a rank's result."""


MAX_CALL_SECONDS = 3600.0


MAX_METHOD_CHARS = 200
"""Most characters of a method's name."""


SleepLevel = Literal[0, 1, 2]
"""The part of a model's memory that has been given back: nothing; its KV cache; its weights,
too."""


WakeTag = Literal["weights", "kv_cache"]


WAKE_TAGS: tuple[WakeTag, ...] = typing.get_args(WakeTag)


MAX_SESSION_ID_CHARS = 256


MAX_KV_RETENTION_S = 86_400.0


class SessionTerms(msgspec.Struct, frozen=True, array_like=True):
    """The conversation that a request is a turn of, and what is expected of the next turn. Nothing
    of it changes an output."""

    id: str
    """Id that the tenant chose, of MAX_SESSION_ID_CHARS at most."""
    retention_s: float | None = None
    """Seconds for which its KV blocks are kept before others' after the request's end; None: as the
    engine core's settings have it."""
    resume_within_s: float | None = None
    """Seconds after which the next turn is expected; None: unknown."""


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A name by which an answer is found again whose front end or client has gone away."""

    digest: bytes
    """A digest of all that the answer depends on, and of its tenant: equal ones claim equal
    answers."""
    goes_on: bool = False
    """Whether its reader has lost an earlier connection: that reader gets no more of the answer
    there."""
    retried: bool = False
    """Whether its reader may come again without having got anything (Idempotency-Key)."""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """What a tenant is granted."""

    weight: int = 1
    """Weight of its share."""
    max_requests: int | None = None
    """Requests that may be open at once; None for any number."""
    highest_priority: int = HIGHEST_PRIORITY
    """The lowest value that it may ask for."""


GRANT_RANGES = {
    "weight": (1, 1000),
    "max_requests": (1, 1_000_000),
    "highest_priority": (HIGHEST_PRIORITY, LOWEST_PRIORITY),
}
"""Allowed values of a Grant's fields, both ends included."""


GrammarKind = Literal[
    "json_schema", "json_object", "regex", "choice", "lark", "gbnf", "structural_tag"
]


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """What an output must look like."""

    kind: GrammarKind
    text: str = ""
    """What `kind` asks for: a JSON schema; nothing (json_object); a regular expression for the
    whole output; a JSON array of strings (choice); a grammar in llguidance's dialect of Lark or in
    llama.cpp's GBNF; or a structural tag as JSON, in either of vLLM's formats."""


class TimestampRules(msgspec.Struct, frozen=True, array_like=True):
    """How timestamps stand in a transcript: in pairs, but for the first and the last of all; never
    earlier than the one before; and one is sampled wherever all of them together are more probable
    than any other token. All ids are of the vocabulary."""

    first: int
    """The timestamp of 0 s. It and all ids from there on are timestamps."""
    text_end: int
    """End of the text; ids below it are text."""
    none: int
    """The token that says that there are no timestamps, which never comes."""
    max_initial: int | None = None
    """The latest timestamp that an output may begin with, counted from `first`; None: any."""


class SpeechRules(msgspec.Struct, frozen=True, array_like=True):
    """What tokens an output may hold that transcribes speech (Radford et al. 2022,
    arXiv:2212.04356)."""

    suppressed: tuple[int, ...] = ()
    """Ids that never come."""
    suppressed_first: tuple[int, ...] = ()
    """Ids that don't come first."""
    timestamps: TimestampRules | None = None
    """Rules for timestamps; None if timestamps are tokens like any other."""


class ThinkingBudget(msgspec.Struct, frozen=True, array_like=True):
    """How many tokens of thoughts an output may hold before they are closed for it.

    Thoughts are the first block of them: from where the prompt or the output opens it to the first
    mark that ends it. What follows an ended block is no thoughts.
    """

    tokens: int
    """Most tokens between the marks."""
    begin: tuple[int, ...]
    """Ids of the mark that opens the block."""
    ends: tuple[tuple[int, ...], ...]
    """Ids of each mark that ends it."""
    closing: tuple[int, ...]
    """Ids that are written where the budget is spent; a mark that ends the block comes first."""
    spent: int | None = None
    """Tokens of thoughts that the prompt ends in; None: it ends outside of a block."""


class LogitsAdjustments(msgspec.Struct, frozen=True, array_like=True):
    """Changes of a row's logits that depend on the request or on its tokens. See SamplingParams.

    For the penalties `presence`, `frequency` and `repetition`, the values 0, 0 and 1 are off.
    """

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: dict[int, float] = {}
    """Numbers that are added to logits, by token id."""
    allowed: tuple[int, ...] | None = None
    """Token ids, ascending; None if all are allowed."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token id sequences. The last id of one can't be sampled where the output ends with the
    others."""
    speech: SpeechRules | None = None
    """Rules for transcripts; None for other outputs."""
    thinking: ThinkingBudget | None = None
    """How long thoughts may be; None: as long as the output."""


class TokenSampling(msgspec.Struct, frozen=True, array_like=True):
    """What the worker needs to sample one sequence's next token."""

    seed: int
    """0 <= seed < 2**64. The draw for token i of sequence c depends only on (seed, c, i)."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Number of most likely tokens that are sampled from; 0 for all."""
    min_p: float = 0.0
    logprobs: int | None = None
    """Number of top alternatives to report; None for no log-probabilities."""
    min_tokens: int = 0
    held_back: tuple[int, ...] = ()
    """Ids (EOS and stop ids) that can't be sampled until `min_tokens` tokens have been emitted."""
    adjustments: LogitsAdjustments | None = None
    """Changes of logits; None for none, which keeps most messages short."""
    prompt_logprobs: int | None = None
    """Number of top alternatives to report for each prompt token; None for no log-probabilities."""
    logprob_ids: tuple[int, ...] = ()
    """Ids that are reported instead of the top alternatives, in addition to the emitted token;
    empty: the top ones are."""


class Repetition(msgspec.Struct, frozen=True, array_like=True):
    """When a sequence counts as a loop: its last tokens are a run of at least `min_pattern` and at
    most `max_pattern` tokens, `count` times in a row."""

    min_pattern: int
    max_pattern: int
    count: int

    @property
    def tokens(self) -> int:
        """The most tokens that have to be looked at."""
        return self.max_pattern * self.count


class Stopping(msgspec.Struct, frozen=True, array_like=True):
    """When the engine core ends a sequence. Stop strings are matched by the front end, which sends
    Finish."""

    max_tokens: int
    """Most tokens to emit, including those of a resumed sequence."""
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Whether the model's EOS ids are ignored. stop_token_ids still end the sequence."""
    repetition: Repetition | None = None
    """What ends the sequence as a loop; None: nothing does."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one position: natural logarithms, float32 values, of the raw
    distribution (before any penalty, truncation or temperature). An impossible token has -1e30, not
    -inf."""

    logprob: float
    """Log-probability of the emitted token."""
    top_ids: tuple[int, ...]
    """The most likely tokens in descending order; of equally likely ones the lower id comes first.
    Where ids are listed (logprob_ids): the emitted token, then the others of the list, as
    listed."""
    top_logprobs: tuple[float, ...]
    """Log-probabilities of `top_ids`, in the same order. Tuples, since the garbage collector stops
    looking at tuples of numbers: a gateway holds ten thousands."""


PoolingTask = Literal["embed", "token_embed", "classify", "token_classify", "embed_sparse"]


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    """What a pooling model computes for a request."""

    task: PoolingTask | Literal["align"]
    """embed: one vector for the input; token_embed: one for each token; classify: a score for each
    label; token_classify: such scores for each token; embed_sparse: a weight for each token of the
    vocabulary that has any. align, of a model that transcribes and no other: for each of the
    decoder's tokens, how many of the encoder's rows had gone by when the next one began."""
    token_types: bytes = b""
    """One byte per token (which text of a pair it belongs to); empty if all are 0."""
    dimensions: int | None = None
    """How many of an embedding's first numbers are kept; None for all."""
    normalize: bool | None = None
    """Whether the vector is then scaled to length 1; None for the model's default."""
    activate: bool | None = None
    """Whether scores are passed through the head's activation; None for the model's default."""
    rows: int = 0
    """The encoder's rows that hold sound, for the kind `align`: its first ones; the others are
    silence."""
    skipped: int = 0
    """The decoder's first tokens, for the kind `align`, which say what it is to do and were never
    spoken."""
    seen: int = 0
    """Tokens that an encoder's tokens see, of a model for late interaction: the first ones; 0 for
    all."""


class Vectors(msgspec.Struct, frozen=True, array_like=True):
    """One vector, or one per token; or the numbers of a sparse vector that aren't 0.

    The receiver must check that shape and data agree (`is_sound`).
    """

    shape: tuple[int, ...]
    """(size,) or (tokens, size); of an alignment (tokens,); of a sparse vector (numbers,)."""
    data: Bytes
    """float32, little-endian, row by row; where it was decoded, a view into the message."""
    places: bytes | None = None
    """int32, little-endian: the index of each number of a sparse vector, ascending; None: it isn't
    sparse."""

    def indexes(self) -> list[int]:
        """The index of each number of a sparse vector."""
        found = array("i")
        found.frombytes(self.places or b"")
        if sys.byteorder == "big":
            found.byteswap()
        return found.tolist()

    def is_sound(self) -> bool:
        """Returns whether the number of bytes is that of the shape."""
        if self.places is not None:
            sizes = {4 * size for size in self.shape}
            return len(self.shape) == 1 and sizes == {len(self.places)} == {len(self.data)}
        count = 1
        for size in self.shape:
            if size < 1:
                return False
            count *= size
        return 1 <= len(self.shape) <= 2 and len(self.data) == 4 * count


class AdapterFile(msgspec.Struct, frozen=True, array_like=True):
    """An adapter (LoRA), and where workers find it."""

    digest: str
    """Digest of its contents, 64 hexadecimal digits."""
    path: str
    """Absolute: a folder or a file whose contents don't change."""


MAX_ADAPTER_NAMES = 1024
"""Names that an engine core keeps, also of adapters that have been unloaded."""


MAX_ADAPTER_NAME = 256
"""Characters."""


class NamedAdapter(msgspec.Struct, frozen=True, array_like=True):
    """An adapter's name in requests, and what it stands for at present."""

    name: str
    file: AdapterFile | None
    """The adapter; None if it has been unloaded."""
    stamp: int = 0
    """When this was said, Unix time in ms; 0 for an adapter of the settings. What was said last
    holds, on every engine core and gateway."""
    rank: int = 0
    """The highest of its factors'."""
    parent: str = ""
    """The model that it is said to be made for; empty for the one that is served."""

    @property
    def order(self) -> tuple[int, str]:
        """The greatest of what was said of a name holds, for everybody: of what was said in the
        same millisecond too."""
        return self.stamp, "" if self.file is None else self.file.digest
