"""Engine core -> worker."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model_config import PoolingConfig
from penstock.protocol.common import Grammar, Pooling, TokenSampling


class RankGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks that compute one model together, and the place of this worker among them.

    tensor, pipeline: ranks of a stage, and stages; rank r is tensor rank r % tensor of stage
    r // tensor.  rendezvous: HOST:PORT of rank 0's store, as its WorkerHello had it.  number: of
    this forming of the group; a later one is higher.
    """

    tensor: int
    pipeline: int
    rank: int
    rendezvous: str
    number: int


class Setup(msgspec.Struct, frozen=True, tag="setup", kw_only=True):
    """First message to a worker: load this, size the pool, answer Ready (or Fault).

    model_dir: the prepared folder.  num_kv_blocks: None means as many as memory allows.
    numa_node: None means any.  host_kv_bytes: memory for the host tier, 0 for none.
    grammar_mask_budget_ms: that a step's logits may wait for masks.
    pooling: how vectors are made; None: the model generates text.
    served_name: what requests call the model; a worker's metrics have it as a label.
    digest: of the model that the engine core serves; empty: it doesn't say.
    device: auto, cpu or cuda.  gpu_memory_utilization: see CacheSettings.  batch_invariant,
    enforce_eager: see WorkerSettings.  load_format: see ModelSettings.
    group: None: this worker is alone.
    """

    version: int
    model_dir: str
    dtype: str
    attention_backend: str
    threads: int | None
    block_size: int
    num_kv_blocks: int | None
    kv_memory_fraction: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    numa_node: int | None = None
    kv_cache_dtype: str = "auto"
    quantization: str = "none"
    host_kv_bytes: int = 0
    grammar_mask_budget_ms: float = 10.0
    pooling: PoolingConfig | None = None
    served_name: str = ""
    digest: str = ""
    device: str = "auto"
    gpu_memory_utilization: float = 0.9
    batch_invariant: bool = False
    enforce_eager: bool = False
    load_format: str = "auto"
    group: RankGroup | None = None
    kv_memory_bytes: int = 0
    """That the pool takes at most, on a CPU, or as many as one sequence needs; 0: no such bound."""


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """Copies a KV block of all layers. Each of source and target is a block of the device's pool
    or of the host's: device (both of the device), out (device to host), in (host to device)."""

    kind: Literal["device", "out", "in"]
    source: int
    target: int


MAX_COMPILING = 4
"""Grammars that a worker is asked to compile at once; it begins with each at once, as the time that
each may take counts from then on."""


class CompileGrammar(msgspec.Struct, frozen=True, tag="compile_grammar"):
    """Answered by GrammarReady or GrammarFailed, while steps go on.

    grammar: a number that the engine has not used before in this session.
    """

    grammar: int
    definition: Grammar


class DropGrammar(msgspec.Struct, frozen=True, tag="drop_grammar"):
    """No sequence will be admitted with this grammar any more; not answered."""

    grammar: int


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that takes a slot, in full; later plans only say what changed.

    tokens: prompt and emitted ids.  num_prompt: how many of them are prompt.
    index: the sequence's index in its request (the c of the draw (seed, c, i)).
    blocks: its block table so far, physical block numbers in token order.
    grammar: number of the grammar that its output follows; it is ready.
    pooling: what is to be made of it; None: text.
    prompt_from: the first prompt token, at least 1, whose log-probabilities are to be reported, and
    of all after it; None: of none.
    like: slot of another sequence of the same request, admitted before, in this plan or an earlier
    one: prompt, sampling, grammar and pooling are its, and `tokens` holds emitted ids alone.
    """

    slot: int
    tokens: list[int]
    num_prompt: int
    index: int
    sampling: TokenSampling
    blocks: list[int]
    grammar: int | None = None
    pooling: Pooling | None = None
    prompt_from: int | None = None
    like: int | None = None


class SlotWork(msgspec.Struct, frozen=True, array_like=True):
    """Compute tokens [start, start + count) of a slot, after appending new_blocks to its table.

    When start + count reaches the tokens that the slot has, the worker samples the next token,
    appends it to the slot and reports it; that token's KV is computed by a later plan.
    sampled: tokens that the slot's earlier work gave, from position start + count - len(sampled)
    on: set where a model is spread over stages, whose first ones don't sample.  A slot that has
    them already must have the same.
    """

    slot: int
    start: int
    count: int
    new_blocks: list[int] = []
    sampled: list[int] = []


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """One step: copy blocks, in the order given; release; admit; compute.

    step: numbered from 1 in each worker session.  follows: the step that must have been executed
    before (0: none).
    """

    step: int
    follows: int
    released: list[int]
    admitted: list[NewSequence]
    work: list[SlotWork]
    copies: list[Copy] = []


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Leave, now."""


ToWorker = Setup | Plan | CompileGrammar | DropGrammar | Stop
