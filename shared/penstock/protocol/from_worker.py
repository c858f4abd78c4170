"""Worker -> engine core."""

from __future__ import annotations

import msgspec

from penstock.model.kv_layout import ONE_GROUP, KVGroup
from penstock.protocol.common import CallCode, ErrorCode, TokenLogprobs, Vectors
from penstock.protocol.media import MediaFailure


class WorkerHello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a session."""

    versions: list[int]
    rank: int
    pid: int
    rendezvous: str = ""
    """HOST:PORT at which this worker would have its group's store if it became rank 0; empty if it
    can't be in a group of several ranks."""
    life: str = ""
    """Random, drawn at the start of the process: a worker that reconnects with the same value has
    not died. Empty if it is unknown."""


class Ready(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """The model is loaded."""

    num_kv_blocks: int
    """Number of KV blocks."""
    device: str
    fingerprint: str
    """What the numbers depend on (see to_frontend.Status)."""
    arithmetic: tuple[str, ...] = ()
    """What of it isn't the model, in words (see to_frontend.Status)."""
    load_seconds: float
    num_host_blocks: int = 0
    """Number of blocks in the host tier."""
    copy_seconds: float = 0.0
    """Time of copying a block to the host and back; 0 without a host tier."""
    kv_groups: tuple[KVGroup, ...] = ONE_GROUP
    """Each has a block table of its own for every sequence, all of them over one pool. Blocks have
    the same number of tokens and of bytes in all of them. The last may be that of the recurrent
    layers, which has blocks for checkpoints."""
    media_rows: int = 0
    """Rows of encodings that the worker can keep at a time; 0: the model takes no media."""
    whole_spans: bool = False
    """Whether the tokens of a span see one another, so that a span is computed in one step."""
    media_bytes: int = 0
    """Bytes of prepared items that the engine core may have wait here at a time, or be in steps
    that are not settled; 0 if the worker doesn't say. An item counts MEDIA_OVERHEAD more."""
    encoder_rows: int = 0
    """Placeholders of the one item that each prompt of an encoder-decoder model begins with; the
    decoder's tokens come after them. 0: items stand anywhere."""
    aligns: bool = False
    """Whether it can tell when tokens were spoken (see common.Pooling)."""
    disk_kv: bool = False
    """Whether it has a tier on disk, and so wants Plan.saves and answers LookUpKV and FetchKV."""
    goes_on: bool = False
    """Whether it computes extra steps without a plan for each (Plan.extra_steps)."""


class SlotResult(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a slot's work."""

    slot: int
    token: int | None = None
    """The sampled token; None if the work doesn't reach the end of the slot's tokens."""
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    """The work failed, and the slot's KV is invalid. Other slots are not affected."""
    deferred: bool = False
    """The mask of the slot's grammar was not ready in time, so no token was sampled. The last token
    of the work has to be computed again; those before it are computed."""
    error_code: ErrorCode | None = None
    """Set along with `error` if the request itself is to blame."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Log-probabilities of the prompt tokens that follow those the work computed, in order, as far
    as NewSequence.prompt_from asks for them."""
    vectors: Vectors | None = None
    """What a pooling model computed, in place of a sampled token; `token` is 0 then."""
    more: list[int] = []
    """Tokens after `token`. With drafts, each was sampled after drafted ones that were right:
    `token` equals the first that was drafted, and each of these but the last equals the next one.
    Otherwise they are those of Plan.extra_steps."""
    more_logprobs: list[TokenLogprobs] | None = None
    """Log-probabilities of `more`, where `logprobs` were asked for."""
    drafted: int = 0
    """Drafted tokens that were computed, at most SlotWork.draft; len(more) of them were right."""
    proposed: int = 0
    """Tokens that the worker can propose to follow the slot's now, without computing anything; a
    hint for the next plans. 0 where Plan.wants_proposed says that it isn't wanted."""
    guessed: bool | None = None
    """Where nothing was drafted: whether `token` is the first that would have been proposed before
    this work. None: nothing would have been, or it isn't known."""
    more_guessed: list[bool] = []
    """What `guessed` says, of those tokens of Plan.extra_steps of which it is known, in order."""

    @property
    def tokens(self) -> list[int]:
        """All sampled tokens, in order."""
        return [] if self.token is None else [self.token, *self.more]


class Result(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    """A step is done: one SlotResult for each SlotWork, in the plan's order.

    In a group of ranks, only tensor rank 0 of the last stage reports slots; the other ranks report
    none.
    """

    step: int
    slots: list[SlotResult]
    compute_seconds: float = 0.0
    sampled: int = 0
    """A hash of the tokens that a rank of the last stage sampled, which must be equal on all of
    them; 0 if there is nothing to compare."""
    encode_seconds: float = 0.0
    """The part of `compute_seconds` that encoded media."""
    idle_seconds: float = 0.0
    """Seconds between the end of the step before and this one's beginning, for whatever reason."""
    upkeep_seconds: float = 0.0
    """The part of `compute_seconds` in which a head or a draft model kept up with sequences that it
    drafted nothing for; on a GPU, what that took the host."""


class GrammarReady(msgspec.Struct, frozen=True, tag="grammar_ready"):
    """The answer to CompileGrammar: sequences may be admitted with this grammar."""

    grammar: int


class GrammarFailed(msgspec.Struct, frozen=True, tag="grammar_failed"):
    """The answer to CompileGrammar if it failed."""

    grammar: int
    reason: str
    """The reason, for the client who wrote the grammar."""
    unavailable: bool = False
    """Whether the grammar isn't why: it may be compiled when it comes again."""


class MediaTaken(msgspec.Struct, frozen=True, tag="media_taken"):
    """The answer to a LoadMediaChunk that more are to follow: it has been taken, and the next one
    may come."""

    name: str
    size: int
    """Bytes of the item that have come so far."""


class MediaReady(msgspec.Struct, frozen=True, tag="media_ready"):
    """The answer to LoadMedia, or its last chunk: the item is here in full and sound, and can be
    encoded."""

    name: str
    work: int = 0
    """What encoding it takes, in millions of multiplications, more or less: it may be divided over
    several steps (Plan.partly). 0: it has to be encoded in one step."""


class MediaFailed(msgspec.Struct, frozen=True, tag="media_failed"):
    """The item can't be loaded, or encoded. Nothing of it is kept."""

    name: str
    reason: str
    """The reason, for the client who sent the item: without paths, and without what a library
    said."""
    code: MediaFailure


class AdapterReady(msgspec.Struct, frozen=True, tag="adapter_ready"):
    """The answer to LoadAdapter: sequences may be admitted with this adapter."""

    adapter: str


class AdapterFailed(msgspec.Struct, frozen=True, tag="adapter_failed"):
    """The answer to LoadAdapter if it failed. Nothing of it is kept."""

    adapter: str
    reason: str
    """The reason, for people, without paths."""
    unfit: bool = False
    """Whether its contents are why, so that loading it again would fail again."""


class FoundKV(msgspec.Struct, frozen=True, tag="found_kv"):
    """The answer to LookUpKV."""

    fetch: int
    count: int
    """How many of the keys, from the first one on, are on disk."""
    block_seconds: float = 0.0
    """How long reading a block took lately; 0: unknown."""


class FetchedKV(msgspec.Struct, frozen=True, tag="fetched_kv"):
    """The answer to FetchKV."""

    fetch: int
    count: int
    """How many of the blocks, from the first one on, have their contents. What could not be read,
    or is damaged, ends them."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Sent during a long step, so that the engine core can tell it from one that is stuck."""

    step: int
    layers: int
    """Layers computed since the worker started."""


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """The worker can't continue (the folder doesn't exist, memory is insufficient, …)."""

    message: str
    final: bool
    """Whether a restart won't help."""
    out_of_memory: bool = False
    """A step needed more memory than the device has. Smaller steps may succeed."""
    rank_lost: bool = False
    """Another rank of the group is gone, and nothing else was wrong here."""


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The worker was asked to stop and abandons the steps in flight; this is no fault."""


class Asleep(msgspec.Struct, frozen=True, tag="asleep"):
    """The answer to Sleep: the memory is given back."""


class CallDone(msgspec.Struct, frozen=True, tag="call_done"):
    """Answers WorkerCall."""

    call: int
    result: bytes
    """The result as `penstock.protocol.call_values` encodes it, MAX_CALL_BYTES at most."""


class CallFailed(msgspec.Struct, frozen=True, tag="call_failed"):
    """Answers WorkerCall where the method can't be called, or raised."""

    call: int
    code: CallCode
    error: str


FromWorker = (
    WorkerHello
    | Leaving
    | Ready
    | Result
    | GrammarReady
    | GrammarFailed
    | Progress
    | Fault
    | MediaTaken
    | MediaReady
    | MediaFailed
    | AdapterReady
    | AdapterFailed
    | Asleep
    | FoundKV
    | FetchedKV
    | CallDone
    | CallFailed
)
