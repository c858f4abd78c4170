"""Engine core -> worker."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model_config import PoolingConfig
from penstock.protocol.common import Grammar, Pooling, TokenSampling


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
    """Of this forming of the group; each later one has a higher number."""


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
    """None for as many as fit in memory."""
    kv_memory_fraction: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    numa_node: int | None = None
    """None for any."""
    kv_cache_dtype: str = "auto"
    quantization: str = "none"
    host_kv_bytes: int = 0
    """Size of the host tier; 0 for none."""
    grammar_mask_budget_ms: float = 10.0
    """How long a step's logits may wait for grammar masks."""
    pooling: PoolingConfig | None = None
    """How the model computes vectors; None if it generates text."""
    served_name: str = ""
    """The model's name in requests, which is a label of the worker's metrics."""
    digest: str = ""
    """Of the model that the engine core serves; empty if it doesn't say."""
    device: str = "auto"
    """auto, cpu or cuda."""
    gpu_memory_utilization: float = 0.9
    batch_invariant: bool = False
    enforce_eager: bool = False
    load_format: str = "auto"
    group: RankGroup | None = None
    """None if this worker is alone."""
    kv_memory_bytes: int = 0
    """The most that the KV pool takes on a CPU, unless one sequence needs more; 0 for no such
    bound."""


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """Copies a KV block, over all layers."""

    kind: Literal["device", "out", "in"]
    """device: within the device. out: from the device to the host tier. in: from the host tier to
    the device."""
    source: int
    target: int


NO_BLOCK = -1
"""In place of a block's number: there is none, and none is needed."""

MAX_COMPILING = 4
"""Grammars that a worker is asked to compile at a time. It starts each of them immediately, because
the time limit of each counts from then on."""


class CompileGrammar(msgspec.Struct, frozen=True, tag="compile_grammar"):
    """Answered by GrammarReady or GrammarFailed, while steps continue."""

    grammar: int
    """A number that the engine core has not used before in this session."""
    definition: Grammar


class DropGrammar(msgspec.Struct, frozen=True, tag="drop_grammar"):
    """No sequence will be admitted with this grammar any more. Not answered."""

    grammar: int


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that takes a slot, in full. Later plans only send changes."""

    slot: int
    tokens: list[int]
    """Ids of the prompt and of emitted tokens."""
    num_prompt: int
    """Number of prompt tokens."""
    index: int
    """Of the sequence within its request: c of the draw (seed, c, i)."""
    sampling: TokenSampling
    blocks: list[int]
    """Its block table so far: KV blocks in token order. With several KV groups (see Ready), all of
    the first group's table, then all of the next one's, and so on, equally long; NO_BLOCK where
    nothing is read any more, as it is behind what the group's layers see."""
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


class SlotWork(msgspec.Struct, frozen=True, array_like=True):
    """Computes tokens [start, start + count) of a slot, after appending `new_blocks` to its block
    table; with several KV groups, equally many to each group's, one group after another.

    What lies behind the tokens that a group's layers see from `start` on is given to others without
    a word, once the work is settled: whoever computes must not read it.

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


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """One step: copy blocks in the given order, release slots, admit sequences, compute."""

    step: int
    """Numbered from 1 in each worker session."""
    follows: int
    """The step that must have been executed before; 0 for none."""
    released: list[int]
    admitted: list[NewSequence]
    work: list[SlotWork]
    copies: list[Copy] = []


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The worker is to stop at once."""


ToWorker = Setup | Plan | CompileGrammar | DropGrammar | Stop
