"""Front end (gateway or library) -> engine core."""

from __future__ import annotations

import msgspec

from penstock.protocol.common import Grammar, Grant, Pooling, Stopping, TokenSampling


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a session. versions: protocol versions spoken, best first."""

    versions: list[int]
    name: str
    pid: int


class OpenSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence to run. emitted: what it has produced already, when it is resumed."""

    index: int
    emitted: list[int] = []


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Run a request. Answered by Accepted or Rejected, then by Outputs.

    request: a number that the front end has not used before in this session.
    name: the id that people see (x-request-id), for logs.
    prompt: token ids, at least one.
    sequences: those still open; all of 0..n-1 with nothing emitted for a new request.
    deaths: engine cores that died with it in a step since it last gained a token.
    resumed: it had been accepted before, by this engine core or another, so it is not refused for
    lack of room.
    cache_salt: requests share KV blocks only with those of the same salt.
    tenant: who asks (the digest of an API key; empty: nobody in particular).
    priority: the lower value is served earlier, as in vLLM.
    time_left_ms: until the request's deadline, when this was sent; None: it has none.
    grammar: what every sequence's output must look like.  Then Prepared comes before any output, or
    a terminal output whose code says what is wrong with the grammar.
    remote_kv_ms: the KV of its prefix is on its way from another engine: wait for KVArrived so long
    at most, and compute what has not come.
    grant: what the tenant may have, by the front end's file of API keys; None: the front end has
    none.  Where the engine core's own settings list the tenant, they win.
    timeline: each terminal output is to say where the sequence's time went.
    prompt_delivered: tokens of the prompt whose log-probabilities the front end has (the first,
    which has none, among them), when a request that asks for them is resumed.
    beams: of a beam search, sequences that it may have at once; 0: it is none.  Such a request
    stays open when its sequences have ended, each after one token, until it is aborted; Advance
    gives it the next ones.
    pooling: vectors are wanted, no text.  One sequence then, with max_tokens 1: what is made of the
    prompt counts as a token.  Answered by Pooled instead of Outputs, unless it fails.
    """

    request: int
    name: str
    prompt_token_ids: list[int] = msgspec.field(name="prompt")
    sequences: list[OpenSequence]
    sampling: TokenSampling
    stopping: Stopping
    deaths: int = 0
    resumed: bool = False
    cache_salt: str = ""
    tenant: str = ""
    priority: int = 0
    time_left_ms: int | None = None
    grammar: Grammar | None = None
    timeline: bool = False
    remote_kv_ms: int | None = None
    grant: Grant | None = None
    prompt_delivered: int = 0
    pooling: Pooling | None = None
    beams: int = 0


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """The next sequences of an open beam search, whose former ones have ended. Each has what its
    beam has emitted, and ends with one token more."""

    request: int
    sequences: list[OpenSequence]


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """A stop string matched: the sequence ends, with `at` emitted tokens."""

    request: int
    sequence: int
    at: int


class KVArrived(msgspec.Struct, frozen=True, tag="kv_arrived"):
    """The KV of the request's prefix is there, or will not come: it needn't wait any more."""

    request: int


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The client is gone: end every open sequence of the request now."""

    request: int


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """A lease on Snapshots: for so many seconds, LONGEST_LEASE at most, or until the next Watch; 0
    ends it.  Sent only to engines whose Welcome says that they know it (`live`)."""

    seconds: float


FromFrontend = Hello | Submit | Advance | Finish | KVArrived | Abort | Watch
