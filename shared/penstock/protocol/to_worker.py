"""Messages from the engine core to a worker."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from penstock.model.pooling_config import PoolingConfig
from penstock.model.speculation import SpeculativeConfig
from penstock.protocol.common import MAX_CALL_BYTES, Pooling, TokenSampling
from penstock.protocol.media import Media
from penstock.protocol.worker_resources import (
    CompileGrammar,
    DropAdapter,
    DropGrammar,
    DropMedia,
    LoadAdapter,
    LoadMedia,
    LoadMediaChunk,
)


class RankGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks that compute one model together, and this worker's place among them. Rank r is
    tensor rank r % tensor of stage r // tensor."""

    tensor: int
    """Ranks per stage."""
    pipeline: int
    """Number of stages."""
    rank: int
    rendezvous: str
    """HOST:PORT of rank 0's store, from its WorkerHello."""
    number: int
    """Number of this forming of the group; each later one has a higher number."""


class Setup(msgspec.Struct, frozen=True, tag="setup", kw_only=True):
    """First message to a worker: load this model, allocate the KV cache, and answer Ready (or
    Fault).

    For `gpu_memory_utilization` see CacheSettings, for `batch_invariant` and `enforce_eager`
    WorkerSettings, for `load_format` ModelSettings.
    """

    version: int
    model_dir: str
    """The prepared folder."""
    dtype: str
    attention_backend: str
    threads: int | None
    block_size: int
    num_kv_blocks: int | None
    """Number of KV blocks; None for as many as fit in memory."""
    kv_memory_fraction: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    numa_nodes: tuple[int, ...] = ()
    """NUMA nodes that the worker is bound to; empty for any."""
    kv_cache_dtype: str = "auto"
    calculate_kv_scales: bool = False
    """Whether a trial step gives the scales of an fp8 KV cache (see CacheSettings)."""
    quantization: str = "none"
    matmul_precision: str = "medium"
    """How finely products' inputs are rounded: medium or high (see ModelSettings)."""
    host_kv_bytes: int = 0
    """Size of the host tier; 0 for none."""
    grammar_mask_budget_ms: float = 10.0
    """How long a step's logits may wait for grammar masks."""
    pooling: PoolingConfig | None = None
    """How the model computes vectors; None if it generates text."""
    served_name: str = ""
    """The model's name in requests, which is a label of the worker's metrics."""
    digest: str = ""
    """Digest of the model that the engine core serves; empty if it doesn't say."""
    device: str = "auto"
    """auto, cpu or cuda."""
    gpu_memory_utilization: float = 0.9
    batch_invariant: bool = False
    enforce_eager: bool = False
    load_format: str = "auto"
    group: RankGroup | None = None
    """The ranks that share the model; None if this worker is alone."""
    kv_memory_bytes: int = 0
    """The most that the KV pool takes on a CPU, unless one sequence needs more; 0 for no such
    bound."""
    state_checkpoint_tokens: int | None = None
    """Tokens between two checkpoints of recurrent states; None for what their size suggests."""
    encoder_cache_rows: int | None = None
    """Rows of encodings that are kept (see Ready.media_rows); None for what suits the model. A
    model that takes no media ignores it."""
    media_load_bytes: int = 0
    """The most bytes of prepared items that the engine core will have wait at a time; 0 if it
    doesn't say. See Ready.media_bytes."""
    speculation: SpeculativeConfig | None = None
    """How tokens are drafted; None: not at all."""
    max_loras: int = 0
    """Adapters that steps may use at a time; 0: none are served."""
    max_lora_rank: int = 0
    """The highest rank of an adapter's factors."""
    lora_whole_matrices: bool = False
    """Whether adapters may bring an embedding and an output head of their own."""
    lora_experts: bool = False
    """Whether adapters may change mixtures of experts."""
    disk_kv_dir: str = ""
    """Folder of the tier on disk; empty for none."""
    disk_kv_bytes: int = 0
    """Most bytes in that folder."""
    disk_kv_write_bytes: int = 0
    """Most bytes that are written per second, to the folder and to `kv_store`."""
    worker_extensions: str = "all"
    """Which worker extensions are loaded (see WorkerSettings)."""
    kv_store: str = ""
    """Name of the plug-in that keeps KV blocks besides the disk; empty for none."""
    kv_store_address: str = ""
    """Address that the plug-in is opened with."""
    disk_kv_key_file: str = ""
    """File of the key that encrypts stored KV blocks; empty if they aren't encrypted."""
    kv_endpoint: str = ""
    """Address where other engine cores' workers ask this one for KV blocks; empty for none."""
    kv_peers: tuple[str, ...] = ()
    """Addresses of the workers that this one asks for KV blocks."""
    kv_transfer_bytes: int = 0
    """Most bytes of KV blocks that are kept in memory for other workers."""
    trial: bool = False
    """Whether the worker goes on with the former model if this one can't be loaded, instead of
    ending."""
    flash_attention_3: bool = True
    """Whether FlashAttention 3 may compute attention (see WorkerSettings)."""
    max_number_digits: int = 0
    """Most digits in a row of a number in a JSON schema's output; 0: any number (see
    GrammarSettings)."""
    warm_grammars: bool = False
    """Whether the grammar library is loaded before a grammar comes (see GrammarSettings)."""
    expert_parallel: bool = False
    """Whether each rank of `group` holds some experts as a whole (see ParallelSettings)."""
    cpu_experts: str = "off"
    """Whose routed experts a GPU's host computes (see WorkerSettings)."""


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """Copies a KV block, over all layers."""

    kind: Literal["device", "out", "in"]
    """device: within the device. out: from the device to the host tier. in: from the host tier to
    the device."""
    source: int
    target: int


class Save(msgspec.Struct, frozen=True, array_like=True):
    """Keeps a KV block's contents on disk, in a `kv_store`, or in memory for other workers."""

    key: bytes
    """Name of the contents."""
    block: int


MAX_EXTRA_STEPS = 32
"""Highest value of Plan.extra_steps."""

NO_BLOCK = -1
"""Stands in a block table for a block that isn't there and isn't needed."""


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """Everything about a sequence that takes a slot. Later plans only send changes."""

    slot: int
    tokens: list[int]
    """Token ids of the prompt, then those that the sequence has emitted already."""
    num_prompt: int
    """Number of prompt tokens."""
    index: int
    """Number of the sequence within its request: c of the draw (seed, c, i)."""
    sampling: TokenSampling
    blocks: list[int]
    """Its block table so far: KV blocks in token order. With several KV groups (see Ready), all of
    the first group's table, then all of the next one's, and so on, equally long; NO_BLOCK where
    nothing is read any more, as it lies before what the group's layers see. The group of recurrent
    layers has no table: see `states`."""
    grammar: int | None = None
    """Number of the grammar that its output follows, which has been compiled."""
    pooling: Pooling | None = None
    """What a pooling model computes for it; None for text."""
    prompt_from: int | None = None
    """First prompt token, at least 1, from which on log-probabilities are reported; None for no
    token."""
    like: int | None = None
    """Slot of another sequence of the same request, admitted in this plan or an earlier one.
    Prompt, sampling parameters, grammar and pooling are taken from it, and `tokens` has emitted ids
    only."""
    states: list[int] = []
    """For a model with recurrent layers: blocks of checkpoints of their states, equally many for
    each (KVGroup.blocks). First that after token `state_at`, if that is not 0; then those that are
    to be written after each multiple of KVGroup.every tokens that the table has room for."""
    state_at: int = 0
    """How many tokens' states it starts with, which is where its first work starts. 0: none, states
    are zero."""
    tail: list[int] = []
    """Blocks of one more checkpoint, which is to be written after token `tail_at`: that is after
    `state_at`, and no multiple of KVGroup.every. Empty for none."""
    tail_at: int = 0
    media: Media | None = None
    """What placeholders of its prompt stand for; None for none, and in a sequence that is like
    another. Items have their names between engine core and workers (LoadMedia.name)."""
    adapter: str = ""
    """Digest of the adapter that is applied to all its tokens, which was answered by AdapterReady;
    empty for none, and in a sequence that is like another."""
    draft_scope: bytes = b""
    """Sequences of the same scope may be drafted from one another's tokens. Empty, too, in a
    sequence that is like another."""
    prediction: list[int] = []
    """Token ids that its output is expected to resemble; empty for none, and in a sequence that is
    like another."""
    claimed: bool = False
    """Whether `prediction` is what somebody claims its output to be: then all drafts are taken from
    it. False in a sequence that is like another."""


class SlotWork(msgspec.Struct, frozen=True, array_like=True):
    """Computes tokens [start, start + count) of a slot, after appending `new_blocks` to its block
    table; with several KV groups, equally many to each group's, one group after another.

    What lies before the tokens that a group's layers see from `start` on is freed without a
    message, once the work is settled: kernels must not read it.

    When start + count reaches the number of the slot's tokens, the worker samples the next token,
    appends it to the slot and reports it. That token's KV is computed by a later plan.
    """

    slot: int
    start: int
    count: int
    new_blocks: list[int] = []
    sampled: list[int] = []
    """Tokens that the slot's earlier work gave, from position start + count - len(sampled) on. Set
    if a model is distributed over pipeline stages, of which only the last samples. A slot that has
    these tokens already must have the same ones."""
    states: list[int] = []
    """Blocks of the checkpoints that are to be written within `new_blocks`: see
    NewSequence.states."""
    draft: int = 0
    """Tokens that may be drafted after the slot's, where the work reaches their end: the block
    table has room for them. The worker computes as many as it can propose, checks each by sampling
    as if those before it were right, and keeps the ones that were sampled, and the token after
    them."""
    after_drafts: bool = False
    """Whether earlier work of the slot, whose result the engine core did not know yet, may have had
    drafts: `start` leaves out those that were kept, and the work starts so many tokens later. The
    block table has room for as many as may have been."""


class PartlyEncoded(msgspec.Struct, frozen=True, array_like=True):
    """An item whose encoding goes on in a later step."""

    name: str
    until: int
    """How much of MediaReady.work is to be done once the step is, counted from the beginning. It
    may be more by the last product that is computed."""


class Plan(msgspec.Struct, frozen=True, tag="plan", omit_defaults=True):
    """One step: copy blocks in the given order, release slots, admit sequences, drop encodings,
    encode items, compute."""

    step: int
    """The plan's number, counted from 1 in each session."""
    follows: int
    """The step that must have been executed before; 0 for none."""
    released: list[int]
    admitted: list[NewSequence]
    work: list[SlotWork]
    copies: list[Copy] = []
    encode: list[str] = []
    """Names of items to encode to the end, each by itself, before the step's tokens are computed.
    All of them were answered by MediaReady, or begun in an earlier step. The prepared item can be
    forgotten then; its rows stay until they are dropped. One that can't be encoded is answered by
    MediaFailed, before the step's Result, and has no rows; the work of the slots whose tokens need
    them fails."""
    dropped_media: list[str] = []
    """Names of items whose rows can be forgotten, or what was begun of them, before those of
    `encode` are computed."""
    partly: list[PartlyEncoded] = []
    """Items to begin or to go on with, after those of `encode`. One item at a time is begun and not
    done; a later step names it again, until one has it in `encode`, or drops it. The encoding is
    the same wherever it was divided. What failed is left."""
    wants_proposed: bool = True
    """Whether the result is to say how many drafts could be proposed next (SlotResult.proposed). To
    find that out takes time."""
    saves: list[Save] = []
    """Blocks to keep on disk, with their contents before anything else of the plan is done. The
    worker leaves out those that it has no time or room for."""
    extra_steps: int = 0
    """Number of tokens that each slot may get after the one that it samples (multi-step decoding),
    at most MAX_EXTRA_STEPS and only if Ready.goes_on. Then each SlotWork of the plan computes one
    token, nothing is drafted, and block tables have room. The worker computes and samples one token
    after another for all slots. It stops early when a message of the engine core waits, when it can
    propose `least_proposed` drafts, or when a slot has no token or one of `ends`."""
    ends: list[int] = []
    """Token ids that end the extra steps for all slots when any slot samples one."""
    least_proposed: int = 0
    """Number of drafts, for all slots together, that ends the extra steps when the worker could
    propose so many; 0 if drafts never end it."""
    rests: bool = False
    """Whether a draft model or head is to forget the sequences of this plan, and to follow none of
    them any more: that takes time which its drafts don't save."""


class SaveKV(msgspec.Struct, frozen=True, tag="save_kv"):
    """Keeps blocks on disk (Plan.saves) when there is no plan to say so. Not answered."""

    saves: list[Save]


class LookUpKV(msgspec.Struct, frozen=True, tag="look_up_kv"):
    """Asks how many of these blocks are kept on disk or by other workers. Answered by FoundKV,
    while steps continue."""

    fetch: int
    """A number that the engine core has not used before in this session."""
    keys: list[bytes]
    """Names of the contents of consecutive blocks of a prompt."""
    waits: bool = True
    """Whether other workers may wait a moment for blocks that they are about to write; if not, only
    those that are there count."""


class FetchKV(msgspec.Struct, frozen=True, tag="fetch_kv"):
    """Reads blocks from disk or from other workers. Answered by FetchedKV, while steps continue.
    Until then no plan touches the blocks."""

    fetch: int
    """Number of the LookUpKV that found them."""
    keys: list[bytes]
    """Names of the contents to read."""
    blocks: list[int]
    """The KV block that each of them is read into."""
    saves: list[Save] = []
    copies: list[Copy] = []
    """Saves and copies, of the kind that a Plan has. Both are done before reading, as `blocks` may
    be among their sources."""
    seconds: float = math.inf
    """Time limit; blocks that haven't been read by then are left out."""


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """The first and only message of a session, in place of Setup: gives back memory of the loaded
    model. Answered by Asleep. The Setup of a later session wakes the model."""

    level: Literal[1, 2]
    """1: gives back the KV cache and a device's weights; weights in host memory stay. 2: gives back
    all of it."""


class WorkerCall(msgspec.Struct, frozen=True, tag="call"):
    """Calls a method of a worker extension; answered by CallDone or CallFailed. No step is planned
    until then."""

    call: int
    """The engine core's number of the call."""
    method: str
    arguments: bytes
    """[args, kwargs] as `penstock.protocol.call_values` encodes them."""
    seconds: float
    """Time limit, after which the process ends if the method hasn't returned."""
    result_bytes: int = MAX_CALL_BYTES
    """Most bytes of the encoded result."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Tells the worker to end at once."""


ToWorker = (
    Setup
    | Plan
    | CompileGrammar
    | DropGrammar
    | LoadMedia
    | LoadMediaChunk
    | DropMedia
    | LoadAdapter
    | DropAdapter
    | SaveKV
    | LookUpKV
    | FetchKV
    | WorkerCall
    | Stop
    | Sleep
)
