"""How ranks share a model on the CPU kernels.

A matrix is cut by its outputs only, and every rank has a part of the columns of what is computed.
Whatever sums over columns (a product, a norm) reads them all, so they are gathered before it. No
sum is cut anywhere: a row's bits are those of one rank, in every format of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from penstock.model.config import ModelConfig
from penstock.model.sharing import GROUP, TILE
from penstock_kernels.cpu.program import Buffer, Exchange, Phase, PhaseKind
from penstock_worker.forward.cpu.gates import FLOATS
from penstock_worker.forward.cpu.weights import ExpertWeights
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.shard import Shard, deal_units, head_ranges


class Split:
    """One rank, which computes all. A method takes a phase as it is compiled for one rank, and
    returns what this rank does instead."""

    def rows(self, name: str, outputs: int) -> range:
        """Returns the outputs of a matrix (or the numbers of a vector) that this rank computes.
        `name` is in our naming."""
        return range(outputs)

    def own_heads(self, config: ModelConfig) -> tuple[range, range]:
        """Returns this rank's query heads and KV heads. `config`: of all ranks."""
        return range(config.num_heads), range(config.num_kv_heads)

    def embedded(self, phase: Phase) -> Iterator[Phase]:
        """EMBED."""
        yield phase

    def heads(self, phase: Phase) -> Phase:
        """HEADS, PLACE or ATTEND."""
        return phase

    def placed(self) -> Iterator[Phase]:
        """Phases before PLACE: what norms over all heads need."""
        yield from ()

    def attended(self, phase: Phase) -> Iterator[Phase]:
        """MAKE_INPUT of what attention has left."""
        yield phase

    def valued(self, phase: Phase, value: int) -> Iterator[Phase]:
        """MAKE_INPUT of values, `value` numbers for each of this rank's heads, side by side."""
        yield phase

    def inner(self, phase: Phase, width: int) -> Iterator[Phase]:
        """GATE_UP or EXPERTS_UP, for an inner dimension of `width`."""
        yield phase

    def expert_ranks(self, layer: int) -> tuple[int, ...]:
        """Returns the rank that holds each expert of a layer; empty: all hold the same of each."""
        return ()

    def experts(
        self, up: Phase, down: Phase, weights: ExpertWeights, width: int = 0
    ) -> Iterator[Phase]:
        """EXPERTS_UP and EXPERTS_DOWN, and what makes their results complete for `combined`.
        width: of these; 0: the hidden size."""
        yield from self.inner(up, weights.inner)
        yield self.results(down, width)

    def combined(self, phase: Phase, width: int = 0) -> Phase:
        """COMBINE."""
        return self.results(phase, width)

    def results(self, phase: Phase, width: int = 0) -> Phase:
        """A phase that computes columns of rows of `width` numbers; 0: of the hidden size."""
        return phase

    def joined(self, buffer: Buffer, width: int = 0) -> Iterator[Phase]:
        """Phases between `results` and what reads the buffer's rows."""
        yield from ()

    def logits(self, phase: Phase) -> Phase:
        """LOGITS."""
        return phase


@dataclass(frozen=True)
class RankSplit(Split):
    """The split of a model's matrices for one of several tensor-parallel ranks."""

    shard: Shard
    ranks: Ranks

    @property
    def _config(self) -> ModelConfig:
        return self.shard.config

    def rows(self, name: str, outputs: int) -> range:
        parts = self._parts(name.removesuffix(".weight").rpartition(".")[2], outputs)
        return range(outputs) if parts is None else self._own(parts)

    def own_heads(self, config: ModelConfig) -> tuple[range, range]:
        return self.shard.heads, self.shard.kv_heads

    def _parts(self, module: str, outputs: int) -> list[range] | None:
        match module:
            case "q_proj":
                latent = self._config.latent
                if latent is None:
                    return self._heads
                return self._head_columns(0, latent.plain + latent.rotating)
            case "k_proj" | "v_proj":
                return self._keys
            case "sinks":
                return [heads for heads, _ in head_ranges(self._config, self.shard.place.tensor)]
            case "o_proj" | "down_proj" | "latent_up":
                return self._deal(outputs, TILE)
            case "gate_proj" | "up_proj":
                return self._deal(outputs, GROUP)
            case "embed_tokens" | "lm_head":
                return self._vocab
        return None

    def _deal(self, count: int, unit: int) -> list[range]:
        return deal_units(count, self.shard.place.tensor, unit)

    def _own(self, parts: Sequence[range]) -> range:
        return parts[self.shard.place.tensor_rank]

    @property
    def _heads(self) -> list[range]:
        return self._head_columns(0)

    @property
    def _keys(self) -> list[range]:
        return self._head_columns(1)

    def _head_columns(self, which: int, size: int | None = None) -> list[range]:
        """Returns each rank's columns, where a head has `size` of them; None: head_dim."""
        dim = size or self._config.head_dim
        found = [each[which] for each in head_ranges(self._config, self.shard.place.tensor)]
        return [range(part.start * dim, part.stop * dim) for part in found]

    def _results(self, width: int) -> list[range]:
        return self._deal(width or self._config.hidden_size, TILE)

    @property
    def _vocab(self) -> list[range]:
        return self._deal(self._config.vocab_size, GROUP)

    def _gathered(self, source: Buffer, parts: Sequence[range]) -> Phase:
        return Phase(
            kind=PhaseKind.EXCHANGE,
            source=source,
            width=max(part.stop for part in parts),
            part=True,
            exchange=ColumnExchange(self.ranks, tuple(parts)),
        )

    def embedded(self, phase: Phase) -> Iterator[Phase]:
        yield replace(phase, part=True, first=self._own(self._vocab).start)
        yield Phase(
            kind=PhaseKind.EXCHANGE,
            source=phase.target,
            width=self._config.hidden_size,
            part=True,
            exchange=RowExchange(self.ranks),
        )

    def heads(self, phase: Phase) -> Phase:
        queries, keys = self._heads, self._keys
        return replace(
            phase,
            part=True,
            first=self._own(queries).start,
            width=queries[-1].stop,
            first_key=self._own(keys).start,
            key_width=keys[-1].stop,
        )

    def placed(self) -> Iterator[Phase]:
        yield self._gathered(Buffer.QUERIES, self._heads)
        yield self._gathered(Buffer.KEYS, self._keys)

    def attended(self, phase: Phase) -> Iterator[Phase]:
        parts = self._heads
        gathered = self._gathered(Buffer.MIXED, parts)
        first = self._own(parts).start
        yield replace(gathered, attention=phase.attention, first=first)
        yield replace(phase, attention=None, width=gathered.width)

    def valued(self, phase: Phase, value: int) -> Iterator[Phase]:
        parts = self._head_columns(0, value)
        gathered = self._gathered(phase.source, parts)
        yield replace(gathered, exchange=ColumnExchange(self.ranks, tuple(parts), in_place=False))
        yield replace(phase, width=gathered.width)

    def inner(self, phase: Phase, width: int) -> Iterator[Phase]:
        parts = self._deal(width, GROUP)
        first = self._own(parts).start
        yield replace(phase, part=True, first=first, width=width, forms=FLOATS)
        gathered = self._gathered(Buffer.INNER, parts)
        yield replace(gathered, experts=phase.experts, forms=phase.forms)

    def results(self, phase: Phase, width: int = 0) -> Phase:
        parts = self._results(width)
        return replace(phase, part=True, first=self._own(parts).start, width=parts[-1].stop)

    def joined(self, buffer: Buffer, width: int = 0) -> Iterator[Phase]:
        yield self._gathered(buffer, self._results(width))

    def logits(self, phase: Phase) -> Phase:
        return replace(phase, part=True, first=self._own(self._vocab).start)

    def join_logits(self, logits: np.ndarray) -> None:
        """Completes logits, [rows, vocab] float32."""
        ColumnExchange(self.ranks, tuple(self._vocab))(logits)


WHOLE = Split()


@dataclass(frozen=True)
class ColumnExchange:
    """Gathers columns: each rank has computed its part."""

    ranks: Ranks
    parts: tuple[range, ...]
    """Columns of each tensor-parallel rank. Where ranks have computed the same columns, these are
    equal."""
    in_place: bool = True
    """Whether this rank's columns are where they belong; else they are the first ones."""

    def __call__(self, values: np.ndarray) -> None:
        own = self.parts[self.ranks.place.tensor_rank]
        self.ranks.complete_columns(values, self.parts, own.start if self.in_place else 0)


@dataclass(frozen=True)
class RowExchange:
    """Gathers rows: of each, one rank has the numbers and the others have zeros."""

    ranks: Ranks

    def __call__(self, values: np.ndarray) -> None:
        found = self.ranks.gather(torch.from_numpy(np.array(values))).numpy()
        # Not a sum: that would make 0 of -0.
        bits = np.bitwise_or.reduce(found.view(np.int32), axis=0)
        values[:] = bits.view(np.float32)


@dataclass
class CPUStageEnds:
    """What a pipeline stage receives from the one before it, and sends to the next."""

    ranks: Ranks
    hidden: int
    _given: np.ndarray = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))

    def receive(self, rows: int) -> None:
        """Waits for the previous stage: in front of the step, so that the kernels' threads don't
        spin meanwhile."""
        if not self.ranks.place.first:
            self._given = self.ranks.receive((rows, self.hidden), torch.float32).numpy()

    def begin(self) -> Iterator[Phase]:
        """Takes EMBED's place in a later stage."""
        yield self._crossed(self._arrive)

    def end(self) -> Iterator[Phase]:
        """Phases after an earlier stage's last layer."""
        yield self._crossed(self._leave)

    def _crossed(self, exchange: Exchange) -> Phase:
        return Phase(
            kind=PhaseKind.EXCHANGE,
            source=Buffer.RESIDUAL,
            width=self.hidden,
            part=True,
            exchange=exchange,
        )

    def _arrive(self, values: np.ndarray) -> None:
        values[:] = self._given

    def _leave(self, values: np.ndarray) -> None:
        self.ranks.send(torch.from_numpy(np.array(values)))
