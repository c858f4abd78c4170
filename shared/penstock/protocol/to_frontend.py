"""Engine core -> front end (gateway or library)."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.config.settings import LimitSettings
from penstock.model.media_facts import MediaFacts
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import GenerationDefaults
from penstock.protocol.common import (
    MAX_CALL_BYTES,
    CallCode,
    ErrorCode,
    FinishReason,
    NamedAdapter,
    PoolingTask,
    SleepLevel,
    TokenLogprobs,
    Vectors,
    WakeTag,
)
from penstock.protocol.live import Snapshot


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that the front end checks first, and the engine core again. For `max_request_tokens`
    and the fields after it see LimitSettings."""

    max_model_len: int
    vocab_size: int
    max_waiting_requests: int
    max_num_seqs: int
    max_grammar_bytes: int = 0
    """Most bytes of a grammar; 0 for engine cores without structured output."""
    grammar_kinds: tuple[str, ...] = ("json_schema", "json_object", "regex", "choice", "lark")
    """Supported kinds. The default is what the first engine cores with structured output supported,
    which didn't send this field."""
    max_request_tokens: int = LimitSettings().max_request_tokens
    max_logit_bias: int = LimitSettings().max_logit_bias
    max_allowed_token_ids: int = LimitSettings().max_allowed_token_ids
    max_bad_words_tokens: int = LimitSettings().max_bad_words_tokens


class WeightFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's files hold, as it was started. Empty, or 0: not known, as of an older engine
    core."""

    format: str = ""
    """gguf or safetensors."""
    dtype: str = ""
    """The type of most matrices, or the name of a quantisation."""
    size: int = 0
    """Bytes of all tensors."""
    numbers: int = 0
    """Values in all tensors."""
    mixture: str = ""
    """The mixture of types that a GGUF file says it has, such as Q4_K_M."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome", kw_only=True):
    """First message to a front end.

    Frame 1 is tokenizer.json, frame 2 the chat template (UTF-8, empty if there is none). So a
    gateway can't tokenise for another model, and needs no shared volume. There are no frames if the
    front end has both (Hello.text).
    """

    version: int
    """The protocol version chosen."""
    boot: str
    """Hex id of this engine core's life."""
    model: str
    """The name that requests use."""
    digest: str
    """Digest of the model as it was started; its weights may have been replaced
    (Status.weights)."""
    created: int
    """Unix time of the engine core's start, in seconds."""
    limits: Limits
    generation: GenerationDefaults
    add_bos: bool
    seed: int | None
    """Seed of requests that bring none; None if the front end draws one for each."""
    pooling: PoolingConfig | None = None
    """How the model computes vectors; None if it generates text."""
    pooling_tasks: tuple[PoolingTask, ...] = ()
    """Tasks of a pooling model, the default first."""
    own_metrics: bool = False
    """Whether the engine core has a metrics port. A gateway then leaves out the engine core's
    metrics."""
    live: bool = False
    """Whether it supports Watch."""
    other_names: tuple[str, ...] = ()
    """Further names by which requests may call the model."""
    media: MediaFacts | None = None
    """How its media are prepared; None: it takes none."""
    max_lora_rank: int = 0
    """The highest rank of adapters that are served; 0: none are."""
    max_loras: int = 0
    """Adapters that a step may have; 0: none are served, or an older engine core."""
    aligns: bool = True
    """False where its settings rule out timestamps of tokens."""
    pauses: bool = False
    """Whether it supports SetPaused."""
    sleeps: bool = False
    """Whether it supports PutToSleep and WakeUp."""
    calls: bool = False
    """Whether it supports CallWorkers."""
    prefills_from: int = 0
    """It computes prompts of at least so many tokens for others, which fetch their KV and go on
    with them, and takes nothing else where there are others. 0: it takes all."""
    expects: bool = False
    """Whether it supports ExpectPrompt: it fetches KV blocks from others, and is to do so ahead."""
    replaces: bool = False
    """Whether it supports ReplaceWeights."""
    call_bytes: int = MAX_CALL_BYTES
    """The most that the arguments of a CallWorkers may have."""
    family: str = ""
    """What the model's layers are: `llama`, `gpt_oss`, …; empty: an older engine core."""
    hub_id: str = ""
    """The model's name on the hub, whatever requests call it; empty: its files came from elsewhere,
    or an older engine core."""
    bit_settings: dict[str, str | int | bool] = {}
    """Settings on which bits depend, by their names, where they differ from the defaults; and
    max_model_len."""
    hashes_weights: bool = False
    """Whether it supports HashWeights."""
    tokenizer_sha256: str = ""
    template_sha256: str = ""
    """SHA-256, in hex, of the two frames; the template's is empty where there is none, and both are
    of an older engine core."""
    weights: WeightFacts = WeightFacts()
    overrides: str = ""
    """What --hf-overrides and --rope-scaling say, as JSON; other weights are described with the
    same. Empty: nothing, or an older engine core."""


def text_of(welcome: Welcome) -> tuple[str, str, str] | None:
    """What names the two frames in Hello.text; None for an engine core that doesn't say."""
    if not welcome.tokenizer_sha256:
        return None
    return welcome.digest, welcome.tokenizer_sha256, welcome.template_sha256


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """A promise: each sequence of the request gets exactly one terminal output."""

    request: int
    shared: bool = False
    """Whether it gets the answer of a request that came before it and goes on."""


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The request was not accepted."""

    request: int
    code: Literal["invalid", "overloaded", "unavailable", "limited"]
    """invalid: it never will be. overloaded, unavailable: retry after `retry_after_ms`. limited:
    likewise, since its tenant has as many requests as it may have."""
    message: str
    retry_after_ms: int = 0
    error_code: str = ""
    """A machine-readable reason of an invalid request, where there is one."""


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The grammar of an accepted request has been compiled, and its outputs follow. Sent again if
    another worker had to compile it once more."""

    request: int


class NeedMedia(msgspec.Struct, frozen=True, tag="need_media"):
    """Asks for an item of an accepted request, shortly before it is needed. Answered by MediaFile,
    MediaChunk or MediaLost. Asked again when a worker has lost what it had."""

    request: int
    item: int
    """Index into the items of the request's media."""
    offset: int = 0
    """The first byte that the engine core has not got yet."""
    chunks: bool = False
    """Whether a file is of no use, as a worker is on another host."""


class SequenceTimeline(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Where a sequence's time went since this engine core accepted it. Times are in seconds of the
    engine core's clock; queue + requeued + compute + dispatch + idle is the total."""

    queue: float
    """Seconds before the sequence first ran."""
    requeued: float
    """Waiting again, after a preemption or a worker's death."""
    compute: float
    """Computation by the worker of the steps that it was in."""
    dispatch: float
    """Seconds that those steps took beyond `compute`: messages, and waiting for the worker."""
    idle: float
    """Running, but in no step that was completed."""
    share: float
    """The sequence's share of `compute`, in proportion to its tokens in each step."""
    first_token: float | None
    """Seconds from acceptance to the sequence's first token; None if there was none."""
    steps: int
    """Steps that it was in."""
    preemptions: int
    """How often it lost its slot."""
    swaps: int
    """How often its blocks were moved to the host tier or back."""
    cached_tokens: int
    """Prompt tokens that were found in the KV cache."""
    media: float = 0.0
    """The part of `queue` and `requeued` spent waiting for media: on their way, or to be loaded by
    the worker."""
    encoded_items: int = 0
    """Items of the prompt that were encoded for it."""
    cached_items: int = 0
    """Items of the prompt whose encoding was found in the encoder cache, or not needed."""
    media_bytes: int = 0
    """Bytes of prepared items that were sent to the worker for it."""
    drafted: int = 0
    """Tokens that were drafted for it, and computed."""
    kept: int = 0
    """Number of `drafted` tokens that were right, and so are part of its output."""
    stored: float = 0.0
    """The part of `queue` and `requeued` spent waiting for KV that is kept on disk or elsewhere."""
    stored_tokens: int = 0
    """Prompt tokens whose KV was read from there while it waited."""
    extra_steps: int = 0
    """Tokens after the first of a step, which the worker computed without a plan for each."""


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True):
    """What one sequence gained in a step."""

    request: int
    sequence: int
    tokens: list[int] = []
    """New ids, in order."""
    logprobs: list[TokenLogprobs] | None = None
    """Log-probabilities of each token, if they were asked for."""
    finish: FinishReason | None = None
    """Set on the terminal output, which comes exactly once."""
    stop_token: int | None = None
    """The stop id that ended it; None for EOS."""
    error: str | None = None
    """The reason, if `finish` is "error"."""
    cached_tokens: int | None = None
    """In the request's first output, the number of prompt tokens that were found in the KV cache
    when it started; otherwise None."""
    error_code: ErrorCode | None = None
    """Set along with `error` if the request itself is to blame, or may come again."""
    timeline: SequenceTimeline | None = None
    """The timeline, with the terminal output, if the Submit asked for it."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """If requested, those of the next prompt tokens, in order. They begin with the second token,
    come before or with the sequence's first token, and only with sequence 0."""
    drafted: int = 0
    """Tokens that were drafted for it in this step; len(tokens) - 1 of them were right."""


class Pooled(msgspec.Struct, frozen=True, tag="pooled"):
    """The result of a pooling request, which has ended."""

    request: int
    vectors: Vectors
    cached_tokens: int | None = None
    """Prompt tokens that were found in the KV cache; None for a model without one."""
    timeline: SequenceTimeline | None = None
    """If the Submit asked for it."""


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """What the sequences of this front end gained in a step."""

    outputs: list[SequenceOutput]
    entered: list[int] = []
    """Requests of which a sequence has entered a step. From here on, until it gains a token, the
    request may be what kills the engine core."""
    left: list[int] = []
    """Requests that were in `entered` and have no sequence in a step any more; all of them wait
    again."""


class Status(msgspec.Struct, frozen=True, tag="status", kw_only=True, omit_defaults=True):
    """The engine core's state, sent at least once per beat interval, or Unchanged. Counts of
    requests, sequences and blocks are those of this moment."""

    ready: bool
    """Whether a worker is ready, so that steps are or could be computed."""
    reason: str
    """Why it isn't ready."""
    fingerprint: str | None
    """What the numbers depend on (model digest, dtype, kernels, instruction set, layout of ranks),
    also while the worker is away for a moment; None until one is ready that has the weights."""
    waiting: int
    running: int
    blocks_total: int
    blocks_free: int
    block_size: int
    steps: int
    """Steps completed since boot."""
    preemptions: int
    frontends: int
    workers: int
    draining: bool = False
    hands_over: bool = False
    """Whether it drains, and what it has open should go on at another engine core now, which can
    fetch its KV from here. What can't, ends here as before."""
    blocks_cached: int = 0
    """Blocks that can be found by their contents, in use or not."""
    compute_seconds: float = 0.0
    """Time that workers spent on those steps, which shows how busy they were."""
    tokens_computed: int = 0
    """Tokens computed in those steps, of prompts and outputs."""
    tokens_generated: int = 0
    """Tokens sampled in those steps."""
    step_tokens: tuple[int, ...] = ()
    """Steps by how many tokens they computed: a count for each bucket of
    penstock.metrics.vllm_names.STEP_TOKENS, and one for what lies beyond; (): none are counted."""
    host_blocks: int = 0
    """Blocks of the host tier."""
    prefix_caching: bool = False
    """Whether prefixes are looked up in the KV cache."""
    media_items_encoded: int = 0
    """Items that workers have encoded since boot."""
    media_items_found: int = 0
    """Items of prompts whose encoding was there already, or not needed."""
    media_bytes: int = 0
    """Bytes of prepared media items sent to workers."""
    drafts: int = 0
    """Times since boot that tokens were drafted for a sequence."""
    drafted_tokens: int = 0
    """Drafted tokens that were computed."""
    kept_tokens: int = 0
    """Number of `drafted_tokens` that were right."""
    aligns: bool = True
    """False where the worker that is ready can't tell when tokens were spoken."""
    paused: bool = False
    """Whether it was paused (SetPaused), and no step is in flight any more."""
    sleeping: SleepLevel = 0
    """The level at which the model sleeps, or is about to (PutToSleep); 0: it doesn't."""
    asleep: bool = False
    """Whether all workers have given back what that level says."""
    waking: tuple[WakeTag, ...] = ()
    """Tags that were named since it fell asleep, and don't wake it alone."""
    weights: str | None = None
    """Digest of the weights that the workers have; None while they have none."""
    missing: tuple[int, ...] = ()
    """Ranks that have no worker, whether it is to load or to sleep."""
    arithmetic: tuple[str, ...] = ()
    """What `fingerprint` covers in addition to the model, in words: kernels, numbers and sampler,
    instruction set, layout of ranks. Empty until the worker is ready."""


class Unchanged(msgspec.Struct, frozen=True, tag="unchanged"):
    """The last Status of this session holds still, and the engine core's loop turns."""


class Adapters(msgspec.Struct, frozen=True, tag="adapters"):
    """Names of adapters, as they are now: all of them after Welcome, and from then on those that
    change."""

    adapters: list[NamedAdapter]


class Called(msgspec.Struct, frozen=True, tag="called"):
    """What one rank answers to CallWorkers, or the engine core to ReplaceWeights and
    HashWeights."""

    call: int
    rank: int
    ranks: int
    """How many answer."""
    result: bytes = b""
    """The result as `penstock.protocol.call_values` encodes it."""
    code: CallCode = ""
    """Why there is no result; empty: there is one."""
    error: str = ""


ToFrontend = (
    Welcome
    | Accepted
    | Rejected
    | Prepared
    | Pooled
    | Outputs
    | Status
    | Unchanged
    | Snapshot
    | NeedMedia
    | Adapters
    | Called
)
