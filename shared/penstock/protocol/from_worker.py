"""Worker -> engine core."""

from __future__ import annotations

import msgspec

from penstock.protocol.common import ErrorCode, TokenLogprobs, Vectors


class WorkerHello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a session. rendezvous: HOST:PORT where this worker, if it is rank 0, would
    have its group's store; empty: it can't be in a group of several.  life: random, drawn when the
    process started: one that dials again with the same has not died; empty: it doesn't say."""

    versions: list[int]
    rank: int
    pid: int
    rendezvous: str = ""
    life: str = ""


class Ready(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """Loaded. num_kv_blocks: blocks in the pool; num_host_blocks: in the host tier.
    fingerprint: see to_frontend.Welcome.  copy_seconds: what copying a block to the host and back
    takes, 0 where there is no host tier."""

    num_kv_blocks: int
    device: str
    fingerprint: str
    load_seconds: float
    num_host_blocks: int = 0
    copy_seconds: float = 0.0


class SlotResult(msgspec.Struct, frozen=True, array_like=True):
    """What a slot's work gave. token: None if it was not the end of the slot's tokens.
    error: the work failed, the slot's KV is void; the other slots are not concerned.
    deferred: the mask of the slot's grammar was not there in time.  No token was sampled, and the
    last token of the work is to be computed again; those before it are computed.
    error_code: set with `error` where the request itself is to blame.
    prompt_logprobs: of the prompt tokens after those that the work computed, in order, as far as
    they are prompt and NewSequence.prompt_from asks for them.
    vectors: of a slot that is pooled, instead of what is sampled; `token` is 0 then."""

    slot: int
    token: int | None = None
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    deferred: bool = False
    error_code: ErrorCode | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    vectors: Vectors | None = None


class Result(msgspec.Struct, frozen=True, tag="result"):
    """A step is done: one SlotResult for each SlotWork, in the plan's order.

    In a group of ranks, only tensor rank 0 of the last stage tells slots; the others none.
    sampled: of all ranks of the last stage, a hash of the tokens that they sampled, which must be
    equal; 0 where there is nothing to compare.
    """

    step: int
    slots: list[SlotResult]
    compute_seconds: float = 0.0
    sampled: int = 0


class GrammarReady(msgspec.Struct, frozen=True, tag="grammar_ready"):
    """A CompileGrammar was done: sequences may be admitted with this grammar."""

    grammar: int


class GrammarFailed(msgspec.Struct, frozen=True, tag="grammar_failed"):
    """A CompileGrammar can't be done. reason: for the client who wrote it."""

    grammar: int
    reason: str


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Sent inside a long step: `layers` counts layers computed since the worker started, so that
    the engine can tell a long step from a stuck one."""

    step: int
    layers: int


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """The worker can't go on (no such folder, not enough memory…). final: restarting won't help.
    out_of_memory: a step took more than the device has; with smaller steps it would go on.
    rank_lost: another rank of the group is gone, and no more was wrong here."""

    message: str
    final: bool
    out_of_memory: bool = False
    rank_lost: bool = False


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The worker was told to go, and gives up the steps in flight: nobody is to blame."""


FromWorker = (
    WorkerHello | Leaving | Ready | Result | GrammarReady | GrammarFailed | Progress | Fault
)
