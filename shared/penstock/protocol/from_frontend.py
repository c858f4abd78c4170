"""Front end (gateway or library) -> engine core."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import (
    MAX_CALL_SECONDS,
    AdapterFile,
    Claim,
    Grammar,
    Grant,
    NamedAdapter,
    Pooling,
    SessionTerms,
    Stopping,
    TokenSampling,
    WakeTag,
)
from penstock.protocol.media import Media

MAX_PREDICTION_TOKENS = 16_384
"""Most tokens of Submit.prediction; or as many as the context has, if that is less."""


MAX_EXPECT_SECONDS = 600.0
"""Seconds for which a prompt is expected."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a session."""

    versions: list[int]
    """Protocol versions that the front end supports, best first."""
    name: str
    pid: int
    unchanged: bool = False
    """Whether it knows Unchanged."""
    text: tuple[str, str, str] | None = None
    """Model digest, and SHA-256 of tokenizer.json and of the chat template, that it has: if they
    are the engine core's, Welcome brings no frames."""


class OpenSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence to run."""

    index: int
    emitted: list[int] = []
    """Token ids that the sequence has emitted already, if it is resumed."""


class Submit(msgspec.Struct, frozen=True, tag="submit", omit_defaults=True):
    """Runs a request. The answer is Accepted or Rejected, then Outputs."""

    request: int
    """A number that the front end has not used before in this session."""
    name: str
    """The id that people see (x-request-id), for logs."""
    prompt_token_ids: list[int] = msgspec.field(name="prompt")
    """Token ids of the prompt, at least one."""
    sequences: list[OpenSequence]
    """Sequences that are still open. For a new request, all of 0..n-1, with nothing emitted."""
    sampling: TokenSampling
    stopping: Stopping
    deaths: int = 0
    """Number of engine cores that died while the request was in a step, since it last gained a
    token."""
    resumed: bool = False
    """Whether this or another engine core had accepted it before, so that it is not refused for
    lack of room."""
    cache_salt: str = ""
    """Requests share KV blocks only with those that have the same salt."""
    tenant: str = ""
    """The tenant that asks: digest of an API key; empty for none."""
    priority: int = 0
    """A lower value is served earlier, as in vLLM."""
    time_left_ms: int | None = None
    """Time until the request's deadline when this was sent; None if it has none."""
    grammar: Grammar | None = None
    """What the output of every sequence must look like. Then Prepared comes before any output, or
    else a terminal output whose code says what is wrong with the grammar."""
    timeline: bool = False
    """Whether each terminal output says where the sequence's time went."""
    grant: Grant | None = None
    """What the tenant is granted by the front end's file of API keys; None if it has none. Where
    the engine core's own settings list the tenant, they take precedence."""
    prompt_delivered: int = 0
    """For a resumed request with prompt log-probabilities: the number of prompt tokens whose
    log-probabilities the front end has, counting the first token, which has none."""
    pooling: Pooling | None = None
    """For a request for vectors instead of text. It has one sequence, with max_tokens 1: what is
    computed of the prompt counts as a token. The answer is Pooled instead of Outputs, unless it
    fails."""
    beams: int = 0
    """For a beam search, the number of sequences that it may have at once; otherwise 0. A beam
    search stays open after its sequences have ended, each after one token, until it is aborted.
    Advance gives it the next ones."""
    media: Media | None = None
    """What the prompt's placeholders stand for; None for a prompt of text. The front end keeps the
    prepared items until the request ends, and sends one whenever NeedMedia asks for it."""
    adapter: AdapterFile | None = None
    """What is applied to all of its tokens; None for nothing. It stays with the request, whatever
    becomes of the adapter's name."""
    prediction: list[int] = []
    """Token ids that the output is expected to resemble (OpenAI's `prediction`), at most
    MAX_PREDICTION_TOKENS. They change no output."""
    background: bool = False
    """Whether it stands after what clients wait for (a line of a batch); under the policy `fair`,
    after what its own tenant's wait for."""
    gathered: bool = False
    """Whether nobody reads its tokens as they come. Outputs may then bring several steps' at once;
    the first after each `entered` comes by itself."""
    session: SessionTerms | None = None
    """The conversation that it is a turn of; None: of none."""
    claim: Claim | None = None
    """The name by which its answer is found again: it is computed on for a while without a reader,
    and this request may get the answer that was computed for an earlier one with an equal claim.
    None: it ends with its reader, and is computed by itself."""
    claimed: bool = False
    """Whether `prediction` is what somebody claims the output to be, and this is to find out: then
    as many of its tokens as fit are computed in each step, whatever was learnt of drafts."""
    shared: bool = False
    """Whether it may get the answer of an equal request of its tenant's that is computed when it
    comes, and later ones may get its. Equal are those whose tokens depend on the same, with the
    same cache_salt, session and priority."""


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """The next sequences of an open beam search, whose former ones have ended. Each begins with
    what its beam has emitted, and ends after one more token."""

    request: int
    sequences: list[OpenSequence]


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """Ends a sequence after `at` emitted tokens, because a stop string matched."""

    request: int
    sequence: int
    at: int


class MediaFile(msgspec.Struct, frozen=True, tag="media_file"):
    """Answers NeedMedia on the same host: the prepared item is a file, which stays as it is until
    the request ends."""

    request: int
    item: int
    """Index into the items of the request's media."""
    path: str
    """Absolute: the item's name in the folder `media` of the private run folder."""


class MediaChunk(msgspec.Struct, frozen=True, tag="media_chunk"):
    """Answers NeedMedia between hosts, with some of the prepared item's bytes as the message's one
    further frame. The next ones are asked for by the next NeedMedia."""

    request: int
    item: int
    """Index into the items of the request's media."""
    offset: int
    """Place of the first byte in the item: the one that NeedMedia asked for."""
    size: int
    """Bytes of the frame: MAX_MEDIA_CHUNK, or what is left of the item."""


class MediaLost(msgspec.Struct, frozen=True, tag="media_lost"):
    """Answers NeedMedia where the front end has not got the item: the request ends."""

    request: int
    item: int


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Ends all open sequences of the request at once, because the client is gone."""

    request: int
    handed_over: bool = False
    """Whether it goes on at another engine core instead."""
    kept: bool = False
    """Whether a request with a claim only loses its reader: it ends unless its answer is claimed in
    time."""


class ExpectPrompt(msgspec.Struct, frozen=True, tag="expect_prompt", omit_defaults=True):
    """Another engine core computes this prompt first, and its request is to follow here. What that
    one's worker has of the prompt's KV blocks is fetched meanwhile, as far as there is spare room;
    all workers that this one fetches from are asked. It promises nothing, and has no answer. After
    MAX_EXPECT_SECONDS nothing more is fetched. Sent only to engine cores whose Welcome says that
    they support it (`expects`)."""

    number: int
    """A number as a request has one; ForgetPrompt names it."""
    prompt_token_ids: list[int] = msgspec.field(name="prompt")
    """Token ids of the prompt, at least one."""
    cache_salt: str = ""
    tenant: str = ""
    adapter: AdapterFile | None = None
    """Salt, tenant and adapter, as in Submit: they say which requests share the blocks."""


class ForgetPrompt(msgspec.Struct, frozen=True, tag="forget_prompt"):
    """Ends an ExpectPrompt: nothing more is to be fetched for the prompt, because its request has
    come, or will not."""

    number: int
    """Number of the ExpectPrompt; one that is not known any more is none to forget."""


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """Requests Snapshots for a number of seconds, LONGEST_LEASE at most, or until the next Watch; 0
    ends them. Sent only to engine cores whose Welcome says that they support it (`live`)."""

    seconds: float


class NameAdapters(msgspec.Struct, frozen=True, tag="name_adapters"):
    """Adapters that were loaded or unloaded by name. The engine core keeps what was said last of
    each name, and tells it to all front ends by Adapters."""

    adapters: list[NamedAdapter]


class SetPaused(msgspec.Struct, frozen=True, tag="set_paused"):
    """No further step is planned, or they are again. What runs keeps its slot and its KV; requests
    are accepted and wait, and deadlines go on. Sent only to engine cores whose Welcome says that
    they support it (`pauses`); Status says when it is done."""

    paused: bool
    abort: bool = False
    """Whether all open requests, also of other front ends, end as they are."""


class PutToSleep(msgspec.Struct, frozen=True, tag="put_to_sleep"):
    """The model's memory is given back, once the steps in flight have ended, until WakeUp. Requests
    are accepted and wait, and deadlines go on. Sent only to engine cores whose Welcome says that
    they support it (`sleeps`); Status says when it is done."""

    level: Literal[1, 2]
    """1: of the KV cache. 2: of the weights, too. A device's weights are given back at both."""
    abort: bool = False
    """Whether all open requests, also of other front ends, end as they are; else they wait, and
    what they have emitted stays."""


class WakeUp(msgspec.Struct, frozen=True, tag="wake_up"):
    """Ends the sleep once all of WAKE_TAGS were named since it began; Status says when it is
    done."""

    tags: list[WakeTag] = []
    """What is to wake; empty for all."""


class CallWorkers(msgspec.Struct, frozen=True, tag="call_workers"):
    """Has each rank call a method of a worker extension, between two steps. Answered by a Called
    for each rank. Sent only to engine cores whose Welcome says that they support it (`calls`)."""

    call: int
    """The front end's number of it."""
    method: str
    arguments: bytes
    """[args, kwargs] as `penstock.protocol.call_values` encodes them, MAX_CALL_BYTES at most."""
    seconds: float
    """Seconds for which it may wait until it begins, and then again for which it may run; up to
    MAX_CALL_SECONDS."""


class ReplaceWeights(msgspec.Struct, frozen=True, tag="replace_weights"):
    """Other weights of the same model are loaded. No request is computed by both: those that have
    begun end first, and what hasn't is computed by the new ones. Answered by a Called, once they
    are loaded, or won't be. Sent only to engine cores whose Welcome says that they support it
    (`replaces`)."""

    call: int
    """The front end's number, as CallWorkers has them."""
    folder: str
    """Prepared, and the same on the workers' machines."""
    model: PreparedModel
    """The folder's manifest."""
    abort: bool = False
    """Whether all open requests, also of other front ends, end as they are."""
    seconds: float = MAX_CALL_SECONDS
    """Seconds that requests that have begun may take to end, and then that may pass until a worker
    comes to load the weights; up to MAX_CALL_SECONDS."""


class HashWeights(msgspec.Struct, frozen=True, tag="hash_weights"):
    """Requests the SHA-256 of each file of weights, which are read when this is first asked.
    Answered by a Called whose result is {name: hex}. Sent only to engine cores whose Welcome says
    that they support it (`hashes_weights`)."""

    call: int
    """The front end's number, as CallWorkers has them."""


FromFrontend = (
    Hello
    | Submit
    | Advance
    | Finish
    | Abort
    | ExpectPrompt
    | ForgetPrompt
    | Watch
    | MediaFile
    | MediaChunk
    | MediaLost
    | NameAdapters
    | SetPaused
    | PutToSleep
    | WakeUp
    | CallWorkers
    | ReplaceWeights
    | HashWeights
)
