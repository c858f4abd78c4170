"""A decoder-only transformer by the CPU kernels: one call computes one step."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock_kernels.cpu.decoder_step import DecoderStep, StepArguments
from penstock_kernels.cpu.entry_blocks import EntryBlocks, LayerBytes
from penstock_kernels.cpu.exchanges import Exchanges
from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.memory import LargeArrays, Scratch, in_lines, spread, zeroed
from penstock_kernels.cpu.operands import MAX_HEAD_DIM, EntriesShape, IndexShape
from penstock_kernels.cpu.program import Program
from penstock_kernels.cpu.structs import NUM_BUFFERS, PkPhase, PkProgram
from penstock_kernels.cpu.thread_count import ThreadCount

PAGE = 16
"""Tokens per page of the cache. A KV block is a whole number of pages."""
MAX_GROUP = 128
"""Most query heads that can share a KV head."""
MANY_ROWS = 64
"""Rows of a step from which on its phases are long, so that its threads wait less."""


@dataclass(frozen=True)
class CacheKind:
    """How the KV cache stores numbers."""

    number: int
    """PkCache in csrc/layer_types.h."""
    value_bytes: int
    """Bytes per number."""
    scale_bytes: int = 0
    """Bytes of the scale of each head's vector."""


CACHE_KINDS = {
    "float32": CacheKind(0, 4),
    "bfloat16": CacheKind(1, 2),
    "int8": CacheKind(2, 1, scale_bytes=4),
}
"""How the KV cache stores numbers, by its dtype."""


@dataclass(frozen=True)
class DecoderShape:
    """Sizes that decide whether the kernels can run a model."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per KV block."""
    latent_dim: int | None = None
    """Numbers of a value, which is a latent; None: head_dim."""
    index: IndexShape | None = None
    """What chooses the keys that a token reads; None: it reads all."""
    entries: EntriesShape | None = None
    """What tokens see besides those of a window; None: nothing."""

    def obstacle(self) -> str | None:
        """Returns why the kernels can't run this shape, or None if they can."""
        if self.head_dim % 16:
            return f"head_dim is {self.head_dim}, not a multiple of 16"
        if self.latent_dim is not None and self.latent_dim % 16:
            return f"a latent has {self.latent_dim} numbers, not a multiple of 16"
        if self.block_size % PAGE:
            return f"kv_block_size is {self.block_size}, not a multiple of {PAGE}"
        if self.head_dim > MAX_HEAD_DIM:
            return f"head_dim is {self.head_dim}; at most {MAX_HEAD_DIM} is possible"
        if self.heads % self.kv_heads:
            return f"{self.heads} query heads can't share {self.kv_heads} KV heads evenly"
        if self.heads // self.kv_heads > MAX_GROUP:
            return f"{self.heads // self.kv_heads} query heads share a KV head; at most {MAX_GROUP}"
        if self.entries is not None and self.entries.index_size:
            return IndexShape(1, self.entries.index_size).obstacle()
        return None if self.index is None else self.index.obstacle()

    def halves(self, cache: str) -> tuple[int, int]:
        """Returns the bytes of a KV block's keys, and of its values, in one layer. An index's keys,
        or what tokens give to entries, lie after the values."""
        keys = _token_bytes(cache, self.kv_heads, self.head_dim)
        values = _token_bytes(cache, self.kv_heads, self.latent_dim or self.head_dim)
        if self.index is not None:
            values += _token_bytes(cache, 1, self.index.size)
        given = 0 if self.entries is None else self.block_size * self.entries.given
        size = CACHE_KINDS[cache].value_bytes
        return keys * self.block_size, values * self.block_size + in_lines(given * size)

    def layer_bytes(self, cache: str) -> LayerBytes:
        """Returns what a layer of a model with entries has of a block."""
        kept = 0 if self.entries is None else self.entries.kept(self.block_size)
        return LayerBytes(*self.halves(cache), in_lines(kept * CACHE_KINDS[cache].value_bytes))


def halves_of(shapes: Sequence[DecoderShape], cache: str) -> tuple[int, int]:
    """Bytes of a KV block's keys, and of its values, over layers of different shapes, at least one:
    a block has room for the largest in each of its layers."""
    keys, values = zip(*(shape.halves(cache) for shape in shapes), strict=True)
    return max(keys), max(values)


def entry_blocks(
    shapes: Sequence[DecoderShape], groups: Sequence[int], cache: str
) -> EntryBlocks | None:
    """What each layer has of a block where some have entries; else None. There are a shape and a
    group for each layer then, in order."""
    if all(shape.entries is None for shape in shapes):
        return None
    return EntryBlocks.of([shape.layer_bytes(cache) for shape in shapes], groups)


@dataclass
class Decoder:
    """A program with its KV cache and scratch memory.

    Raises ValueError for a program that doesn't fit together, MemoryError if there is no room.
    """

    program: Program
    block_size: int
    """Tokens per KV block."""
    num_blocks: int
    cache: str
    """A key of CACHE_KINDS."""
    threads: int
    two_parts: bool = False
    """Whether inputs of products with rounded numbers are sums of two such numbers, and so have
    twice as many bits."""
    spare: DecoderShape | None = None
    """Size of the blocks of a program without attention, which hold copies of states; None: it has
    no blocks."""
    beside: Decoder | None = None
    """Another program's decoder, with the same layers, blocks and threads, whose keys and values it
    has; None: it has its own."""
    scratch: Scratch = field(default_factory=Scratch)
    """Memory for a step, which programs that run one after another may share."""
    _outputs: LargeArrays = field(default_factory=LargeArrays, init=False)
    _ticks: np.ndarray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for shape in self._shapes():
            obstacle = shape.obstacle()
            if obstacle is not None:
                raise ValueError(obstacle)
        self._layers_done = np.zeros(1, dtype=np.int64)
        self._cancelled = np.zeros(1, dtype=np.int32)
        self._groups = 1 + max((each.group for each in self.program.attentions), default=0)
        self._caches: list[tuple[np.ndarray, ...]] = []
        self._areas = self._memory()
        self._phases = self.program.structs(self._caches)
        self._exchanges = Exchanges(self.program.phases)
        self._lost = np.zeros(1, dtype=np.int64)
        self._arguments = StepArguments(
            self.program, self._layers_done, self._cancelled, self._lost
        )
        # Where a thread waits for other ranks, the others wait for it: they say nothing of crowds.
        steady = any(each.calls_ranks for each in self.program.phases)
        self._threads = [ThreadCount(self.threads, steady) for _ in range(2)]
        self._struct = self._describe(self._phases)
        self._check()

    def _shapes(self) -> list[DecoderShape]:
        return [
            DecoderShape(
                each.heads,
                each.kv_heads,
                each.head_dim,
                self.block_size,
                each.latent_dim,
                each.index,
                None if each.entries is None else each.entries.shape,
            )
            for each in self.program.attentions
        ]

    def _memory(self) -> list[np.ndarray]:
        """Allocates the cache of each layer, and returns it in areas, [blocks, bytes] uint8.
        Several layers of the model may have one of the cache's, as their blocks are different ones:
        so all have room for the largest."""
        if self.beside is not None:
            self._caches = self.beside._caches
            return self.beside._areas
        attentions, shapes = self.program.attentions, self._shapes()
        blocks = entry_blocks(shapes, [each.group for each in attentions], self.cache)
        if blocks is not None:
            area = self._area(blocks.size, 0)
            self._caches = blocks.views(area)
            return [area]
        layers = len({each.cache_layer for each in attentions})
        if not layers and self.spare is not None:
            layers, shapes = 1, [self.spare]
        if not layers:
            return []
        areas = [
            self._area(block, spread(number, 2 * layers))
            for number, block in enumerate(halves_of(shapes, self.cache) * layers)
        ]
        self._caches = list(zip(areas[::2], areas[1::2], strict=True))
        return areas

    def _area(self, block: int, offset: int) -> np.ndarray:
        """Blocks are taken from the lowest number: of dozens of areas, a short conversation would
        have a huge page each."""
        size = block * self.num_blocks
        return zeroed(size, offset, begins_small=True).reshape(self.num_blocks, block)

    def _check(self) -> None:
        wrong = load().pk_check(ctypes.byref(self._struct))
        if wrong == len(self._phases):
            raise ValueError(f"no program of {wrong} phases runs on {self.threads} threads so")
        if wrong >= 0:
            name = self.program.phases[wrong].kind.name
            raise ValueError(f"phase {wrong} ({name}) doesn't fit what comes before it")

    @property
    def layers_done(self) -> int:
        """Layers computed since the start. May be read from another thread during a step."""
        return int(self._layers_done[0])

    def count_layer(self) -> None:
        """Counts a layer that isn't one of the program's. Not during a step."""
        self._layers_done[0] += 1

    @property
    def cancelled(self) -> bool:
        return bool(self._cancelled[0])

    def cancel(self) -> None:
        """Ends this step, and every later one, after its current layer; what `logits` returns is
        then meaningless. May be called from another thread."""
        self._cancelled[0] = 1

    def watch(self) -> np.ndarray:
        """From now on, steps add to what is returned, [threads, phases, 2] int64: nanoseconds that
        each thread computed in each of the program's phases, and those that it waited for the
        others. Before this call, steps read no clock. All threads compute the steps from then
        on."""
        self._threads = [ThreadCount(self.threads, steady=True) for _ in self._threads]
        self._ticks = np.zeros((self.threads, len(self._phases), 2), dtype=np.int64)
        self._arguments.struct.ticks = self._ticks.ctypes.data
        return self._ticks

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns views of the cache, [num_blocks, bytes] uint8: keys and values of each layer, or
        where layers have entries, one of all."""
        return list(self._areas)

    def logits(self, step: DecoderStep, rows: np.ndarray) -> np.ndarray:
        """Computes the step, writes its keys and values, and returns the logits of some rows, or
        what else the program gives.

        `rows` is [n] int32. Returns [n, program.outputs] float32; of logits, the columns that the
        program's last phase computes. A row's bits depend on its sequence alone. Raises what an
        exchange with other ranks raises.
        """
        out = self._outputs.floats(len(rows), self.program.outputs)
        self._compute(step, rows, out)
        return out

    def likeliest(self, step: DecoderStep, rows: np.ndarray) -> np.ndarray:
        """Computes the step as `logits` does, but returns, [n] int32, only the token of each row's
        largest logit, of equal ones the lowest; -1 for a row with a logit that is not finite.

        No logits are written to memory. For a program whose last phase computes all of them.
        """
        out = np.empty(len(rows), dtype=np.int32)
        self._compute(step, rows, out)
        return out

    def _compute(self, step: DecoderStep, rows: np.ndarray, out: np.ndarray) -> None:
        # A stage may have no layer of the last groups.
        tables = self._groups * len(step.starts)
        if len(step.first_block) < tables:
            raise ValueError(
                f"{len(step.first_block)} block tables were given; {len(step.starts)} sequences in "
                f"{self._groups} KV groups have {tables}"
            )
        step.check_given(self.program)
        threads = self._threads[len(step.tokens) >= MANY_ROWS]
        held = self._arguments.describe(step, rows, out, threads.now)
        library = load()
        program, rows_of = ctypes.byref(self._struct), ctypes.byref(self._arguments.struct)
        work = self.scratch.at_least(library.pk_forward_bytes(program, rows_of))
        self._exchanges.begin()
        begun = time.perf_counter()
        library.pk_forward(program, rows_of, work)
        seconds = time.perf_counter() - begun
        del held
        threads.tell(len(step.tokens), seconds, 1e-9 * float(self._lost[0]))
        self._exchanges.check(cancelled=self.cancelled)

    def _describe(self, phases: ctypes.Array[PkPhase]) -> PkProgram:
        widths, low = self.program.widths(), self.program.low_rank
        return PkProgram(
            num_phases=len(phases),
            vocab=self.program.vocab,
            block_size=self.block_size,
            cache=CACHE_KINDS[self.cache].number,
            threads=self.threads,
            outputs=self.program.outputs,
            low_rank=0 if low is None else low.columns,
            low_targets=0 if low is None else len(low.shapes),
            two_parts=self.two_parts,
            widths=(ctypes.c_int32 * NUM_BUFFERS)(*widths),
            phases=phases,
            exchange=self._exchanges.function,
            state_numbers=self.program.state_numbers,
            last_numbers=self.program.last_numbers,
        )


def _token_bytes(cache: str, kv_heads: int, head_dim: int) -> int:
    """Returns what a token's keys or values take in a layer."""
    kind = CACHE_KINDS[cache]
    return kv_heads * (head_dim * kind.value_bytes + kind.scale_bytes)
