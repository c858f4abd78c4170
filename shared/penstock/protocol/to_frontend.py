"""Engine core -> front end (gateway or library)."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.config.settings import LimitSettings
from penstock.model_config import GenerationDefaults, PoolingConfig
from penstock.protocol.common import ErrorCode, FinishReason, PoolingTask, TokenLogprobs, Vectors
from penstock.protocol.live import Snapshot


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that the front end checks first and the engine checks again.

    max_grammar_bytes: 0 is said by engines that know no structured output.
    grammar_kinds: kinds that it knows; those of the first engines that knew any, if it is silent.
    max_request_tokens, max_logit_bias, max_allowed_token_ids, max_bad_words_tokens: see
    LimitSettings.
    """

    max_model_len: int
    vocab_size: int
    max_waiting_requests: int
    max_num_seqs: int
    max_grammar_bytes: int = 0
    grammar_kinds: tuple[str, ...] = ("json_schema", "json_object", "regex", "choice", "lark")
    max_request_tokens: int = LimitSettings().max_request_tokens
    max_logit_bias: int = LimitSettings().max_logit_bias
    max_allowed_token_ids: int = LimitSettings().max_allowed_token_ids
    max_bad_words_tokens: int = LimitSettings().max_bad_words_tokens


class Welcome(msgspec.Struct, frozen=True, tag="welcome", kw_only=True):
    """First message to a front end. Frame 1 is tokenizer.json, frame 2 the chat template (UTF-8,
    empty: none): so a gateway can't tokenise for another model and needs no shared volume.

    version: the protocol version chosen.  boot: hex id of this engine's life.
    fingerprint: what the numbers depend on (model digest, dtype, kernels, instruction set,
    layout); None until the worker is ready, then sent with Status.
    """

    version: int
    boot: str
    model: str
    """The name that requests use."""
    digest: str
    created: int
    """Unix time of the engine's start, seconds."""
    limits: Limits
    generation: GenerationDefaults
    add_bos: bool
    seed: int | None
    """Seed for requests that bring none; None: the front end draws one for each."""
    pooling: PoolingConfig | None = None
    """How the model makes vectors; None: it generates text."""
    pooling_tasks: tuple[PoolingTask, ...] = ()
    """What may be asked of a pooling model, what is meant by default first."""
    own_metrics: bool = False
    """Whether the engine core has a metrics port; a gateway then leaves its families out."""
    live: bool = False
    """Whether it knows Watch."""
    other_names: tuple[str, ...] = ()
    """What requests may call the model besides."""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """A promise: each sequence of the request gets exactly one terminal output."""

    request: int


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The request was not taken. invalid: never will be.  overloaded, unavailable: try again
    after retry_after_ms.  limited: likewise, its tenant has as much as it may have."""

    request: int
    code: Literal["invalid", "overloaded", "unavailable", "limited"]
    message: str
    retry_after_ms: int = 0


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The grammar of an accepted request was compiled: what comes next is its output. Said again
    where another worker had to compile it once more."""

    request: int


class SequenceTimeline(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Where a sequence's time in the engine went, since this engine core accepted it. Seconds of
    the engine's clock; queue + requeued + compute + dispatch + idle is the whole of it.

    queue: before it first ran.  requeued: waiting again, after a preemption or a worker's death.
    compute: the worker's time for the steps that it was in.  dispatch: what those steps took beyond
    that (messages, waiting for the worker).  idle: running, but in no step that came to an end.
    share: its part of `compute`, by its part of each step's tokens.
    first_token: from acceptance to its first token; None: there was none.
    steps: that it was in.  preemptions, swaps: times that it lost its slot, and that its blocks
    went to the host or came back.  cached_tokens: of its prompt, not computed.
    """

    queue: float
    requeued: float
    compute: float
    dispatch: float
    idle: float
    share: float
    first_token: float | None
    steps: int
    preemptions: int
    swaps: int
    cached_tokens: int


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True):
    """What one sequence gained in a step.

    tokens: new ids, in order.  logprobs: one per token when asked for.
    finish: set on the terminal output, which comes exactly once.
    stop_token: the stop id that ended it (None for EOS).  error: why, when finish is "error".
    cached_tokens: in the request's first output: how many of the prompt's were found in the KV
    cache when it started; else None.
    error_code: set with `error` where the request itself is to blame.
    timeline: with the terminal output, when the Submit asked for it.
    prompt_logprobs: of the next tokens of the prompt, in order, when asked for: the second token's
    come first, all of them before or with the sequence's first token, and with sequence 0 alone.
    """

    request: int
    sequence: int
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    cached_tokens: int | None = None
    error_code: ErrorCode | None = None
    timeline: SequenceTimeline | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None


class Pooled(msgspec.Struct, frozen=True, tag="pooled"):
    """What was asked of a pooling model; the request has ended.

    cached_tokens: of the prompt, found in the KV cache; None where there is none.
    timeline: when the Submit asked for it.
    """

    request: int
    vectors: Vectors
    cached_tokens: int | None = None
    timeline: SequenceTimeline | None = None


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """All that a step gave this front end's sequences.

    entered: requests of which a sequence has entered a step: from here on, until it gains a token,
    the death of this engine core may be their doing.  left: requests that were told of so, and none
    of whose sequences is in a step any more: all wait again.
    """

    outputs: list[SequenceOutput]
    entered: list[int] = []
    left: list[int] = []


class Status(msgspec.Struct, frozen=True, tag="status", kw_only=True):
    """The engine's state, sent at least every beat interval.

    ready: a worker is up, and steps happen (or could).  reason: why not.
    steps: steps applied since boot.  compute_seconds: that workers spent in them, which says how
    busy they were.  tokens_computed: in those steps, of prompts and outputs; tokens_generated: that
    came of it.  Counts of requests, sequences and blocks are of this moment.
    blocks_cached: those whose contents can be found by what they hold, in use or not.
    """

    ready: bool
    reason: str
    fingerprint: str | None
    waiting: int
    running: int
    blocks_total: int
    blocks_free: int
    block_size: int
    steps: int
    preemptions: int
    frontends: int
    workers: int
    draining: bool = False
    blocks_cached: int = 0
    compute_seconds: float = 0.0
    tokens_computed: int = 0
    tokens_generated: int = 0


ToFrontend = Welcome | Accepted | Rejected | Prepared | Pooled | Outputs | Status | Snapshot
