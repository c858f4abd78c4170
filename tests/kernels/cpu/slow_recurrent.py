"""A recurrent layer of one sequence in float64, from the formulas, token by token; and programs
that compute it, whose features are the rows of their embedding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import DecoderStep
from penstock_kernels.cpu.matrix import MatrixKind, pack
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from penstock_kernels.cpu.recurrent import Recurrent, RecurrentKind, StateMemory, StateMoves

LANES = 32
"""Values of a head whose state lies together."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@dataclass(frozen=True)
class Shape:
    """The shape of a random layer; fields as in Recurrent. width: of a short convolution."""

    kind: RecurrentKind
    kernel: int
    width: int = 0
    key_heads: int = 1
    heads: int = 1
    key_dim: int = 1
    value_dim: int = 1
    tiled: bool = False
    norm_groups: int = 1
    bias: bool = True
    steps: tuple[float, float | None] = (0.0, None)
    by_channel: bool = False
    """Whether gates are logistic, too, and queries, keys and values lie apart."""
    strongest: float = 1.0
    normed: bool = True
    """Whether the maps of Mamba 1 are."""
    vocab: int = 90
    """Rows of features that there are."""


class SlowRecurrent:
    """A layer with random constants, and features for every token."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._rng = np.random.default_rng(shape.kernel + 7 * shape.value_dim)
        short = shape.kind is RecurrentKind.SHORT_CONV
        width = shape.width if short else shape.heads * shape.value_dim
        keys = 0 if short else 2 * shape.key_heads * shape.key_dim
        first_kind = shape.kind is RecurrentKind.MAMBA1
        self.channels = width if first_kind else width + keys
        # Columns in no order that the kernels might take for granted.
        gate, first = 3, 3 + width + 16
        strength = first + self.channels + 5
        time = strength + (width if short else keys if first_kind else shape.heads) + 2
        times = width if first_kind else shape.heads * (shape.key_dim if shape.by_channel else 1)
        rates = (shape.key_dim, width) if first_kind else (shape.heads,)
        self.columns = time + times + 3
        apart = None
        if shape.by_channel:
            apart = (self.columns + width + 2, self.columns)
            self.columns += width + 2 + keys // 2
        heads = None if short else shape.heads
        self.layer = Recurrent(
            kind=shape.kind,
            conv=self._random(shape.kernel, self.channels),
            conv_bias=self._random(self.channels) if shape.bias else None,
            width=width,
            first=first,
            apart=apart,
            by_channel=shape.by_channel,
            logistic_gate=shape.by_channel,
            strongest=shape.strongest,
            gate=gate,
            strength=strength,
            time=time,
            key_heads=0 if short else shape.key_heads,
            heads=heads or 0,
            key_dim=0 if short else shape.key_dim,
            value_dim=0 if short else shape.value_dim,
            tiled=shape.tiled,
            norm_groups=shape.norm_groups,
            steps=shape.steps,
            norm_eps=1e-5,
            rate=None if heads is None else -np.exp(self._random(*rates)),
            time_bias=None if heads is None else self._random(times),
            skip=None if heads is None else self._random(*rates[-1:]),
            norm=1 + self._random(self._norm_size) / 4 if heads and shape.normed else None,
            state=5,
            last=2,
        )
        self.features = self._random(shape.vocab, self.columns)

    def _random(self, *sizes: int) -> np.ndarray:
        return self._rng.standard_normal(sizes).astype(np.float32)

    @property
    def _norm_size(self) -> int:
        if self.shape.kind is RecurrentKind.MAMBA1:
            return 2 * self.shape.key_dim
        mamba = self.shape.kind is RecurrentKind.MAMBA2
        return self.shape.value_dim * (self.shape.heads if mamba else 1)

    # ---- slowly

    def rows(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the scan gives for each token, what becomes of it in front of the last product, both
        [tokens, width], and the state behind them, [numbers], as the kernels have it."""
        features = self.features[tokens].astype(np.float64)
        if self.shape.kind is RecurrentKind.SHORT_CONV:
            return self._short_conv(features)
        inputs, held = self._convolved(self._channels(features))
        inputs = inputs * sigmoid(inputs)
        delta = self.shape.kind is RecurrentKind.GATED_DELTA
        by_channel = self.shape.kind is RecurrentKind.MAMBA1
        scan = self._delta if delta else self._mamba1 if by_channel else self._mamba
        found, matrices = scan(features, inputs)
        state = np.concatenate((held.reshape(-1), *map(self._stored, matrices)))
        gate = features[:, self.layer.gate : self.layer.gate + self.layer.width]
        gate = sigmoid(gate) if self.shape.by_channel else gate * sigmoid(gate)
        mixed = found.reshape(len(tokens), -1)
        if delta:
            return mixed, self._normed(found, self.layer.norm).reshape(mixed.shape) * gate, state
        if by_channel:
            return mixed, mixed * gate, state
        parts = (mixed * gate).reshape(len(tokens), self.shape.norm_groups, -1)
        norm = self.layer.norm.reshape(self.shape.norm_groups, -1)
        return mixed, self._normed(parts, norm).reshape(mixed.shape), state

    def _channels(self, features: np.ndarray) -> np.ndarray:
        first, apart = self.layer.first, self.layer.apart
        if apart is None:
            return features[:, first : first + self.channels]
        size = self.shape.key_heads * self.shape.key_dim
        parts = (first, size), (apart[0], size), (apart[1], self.channels - 2 * size)
        return np.concatenate([features[:, at : at + count] for at, count in parts], -1)

    def _normed(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.layer.norm_eps) * weight

    def _convolved(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """And the last inputs, [kernel - 1, channels]."""
        held = self.shape.kernel - 1
        padded = np.concatenate((np.zeros((held, self.channels)), x))
        found = [(padded[t : t + held + 1] * self.layer.conv).sum(0) for t in range(len(x))]
        bias = 0 if self.layer.conv_bias is None else self.layer.conv_bias
        return np.stack(found) + bias, padded[len(x) :]

    def _short_conv(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        layer = self.layer
        before = features[:, layer.gate : layer.gate + layer.width]
        behind = features[:, layer.strength : layer.strength + layer.width]
        found, held = self._convolved(before * self._channels(features))
        return behind * found, behind * found, held.reshape(-1)

    def _delta(self, features: np.ndarray, inputs: np.ndarray) -> tuple[np.ndarray, list]:
        shape, layer = self.shape, self.layer
        keys = shape.key_heads * shape.key_dim
        query, key = (
            part.reshape(-1, shape.key_heads, shape.key_dim)
            for part in (inputs[:, :keys], inputs[:, keys : 2 * keys])
        )
        query, key = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (query, key))
        value = inputs[:, 2 * keys :].reshape(-1, shape.heads, shape.value_dim)
        strength = sigmoid(features[:, layer.strength : layer.strength + shape.heads])
        strength = strength * shape.strongest
        times = softplus(self._times(features)).reshape(len(inputs), shape.heads, -1)
        decay = np.exp(layer.rate[:, None] * times)
        found, matrices = np.empty_like(value), []
        for head in range(shape.heads):
            several = shape.heads // shape.key_heads
            of = head % shape.key_heads if shape.tiled else head // several
            state = np.zeros((shape.key_dim, shape.value_dim))
            for t in range(len(inputs)):
                state *= decay[t, head][:, None]
                missing = value[t, head] - key[t, of] @ state
                state += strength[t, head] * np.outer(key[t, of], missing)
                found[t, head] = query[t, of] @ state / np.sqrt(shape.key_dim)
            matrices.append(state)
        return found, matrices

    def _mamba(self, features: np.ndarray, inputs: np.ndarray) -> tuple[np.ndarray, list]:
        shape, layer = self.shape, self.layer
        keys = shape.key_heads * shape.key_dim
        value = inputs[:, : layer.width].reshape(-1, shape.heads, shape.value_dim)
        into, out_of = (
            part.reshape(-1, shape.key_heads, shape.key_dim)
            for part in np.split(inputs[:, layer.width :], [keys], -1)
        )
        steps = softplus(self._times(features)).clip(*shape.steps)
        found, matrices = np.empty_like(value), []
        for head in range(shape.heads):
            of = head * shape.key_heads // shape.heads
            state = np.zeros((shape.key_dim, shape.value_dim))
            for t in range(len(inputs)):
                state *= np.exp(steps[t, head] * layer.rate[head])
                state += steps[t, head] * np.outer(into[t, of], value[t, head])
                found[t, head] = out_of[t, of] @ state + layer.skip[head] * value[t, head]
            matrices.append(state)
        return found, matrices

    def _mamba1(self, features: np.ndarray, inputs: np.ndarray) -> tuple[np.ndarray, list]:
        shape, layer, size = self.shape, self.layer, self.shape.key_dim
        maps = features[:, layer.strength : layer.strength + 2 * size].reshape(-1, 2, size)
        if layer.norm is not None:
            maps = self._normed(maps, layer.norm.reshape(2, size))
        steps = softplus(self._times(features))
        found, state = np.empty_like(inputs), np.zeros((size, shape.value_dim))
        for t in range(len(inputs)):
            state *= np.exp(steps[t] * layer.rate)
            state += np.outer(maps[t, 0], steps[t] * inputs[t])
            found[t] = maps[t, 1] @ state + layer.skip * inputs[t]
        return found, [state]

    def _times(self, features: np.ndarray) -> np.ndarray:
        layer = self.layer
        return features[:, layer.time : layer.time + len(layer.time_bias)] + layer.time_bias

    def _stored(self, matrix: np.ndarray) -> np.ndarray:
        cuts = range(LANES, self.shape.value_dim, LANES)
        return np.concatenate([part.reshape(-1) for part in np.split(matrix, cuts, 1)])

    # ---- the same for the kernels

    def program(self, *, finished: bool = False) -> Program:
        """finished: gives what is made of the scan's results, times a unit matrix."""
        layer, width = self.layer, self.layer.width
        phases = [
            Phase(
                kind=PhaseKind.EMBED,
                target=Buffer.QUERIES,
                matrices=(_packed(self.features),),
            )
        ]
        if layer.kind is not RecurrentKind.SHORT_CONV:
            phases.append(Phase(kind=PhaseKind.CONVOLVE, source=Buffer.QUERIES, recurrent=layer))
        scan = Phase(
            kind=PhaseKind.SCAN, source=Buffer.QUERIES, target=Buffer.MIXED, recurrent=layer
        )
        phases.append(replace(scan, ends_layer=True))
        source = Buffer.MIXED
        if finished:
            source = Buffer.RESULT
            phases += [
                Phase(
                    kind=PhaseKind.MAKE_INPUT,
                    source=Buffer.MIXED,
                    target=Buffer.INPUT,
                    width=width,
                    recurrent=layer,
                    forms=1,
                    waits=False,
                ),
                Phase(
                    kind=PhaseKind.PRODUCT,
                    source=Buffer.INPUT,
                    target=Buffer.RESULT,
                    matrices=(_packed(np.eye(width, dtype=np.float32)),),
                    adds=False,
                ),
            ]
        phases.append(Phase(kind=PhaseKind.ROWS, source=source, width=width, waits=False))
        return Program(tuple(phases), vocab=self.shape.vocab)

    def run(self, slots: int, *, threads: int = 1, finished: bool = False) -> RecurrentSteps:
        return RecurrentSteps(self.program(finished=finished), slots, threads)


def _packed(values: np.ndarray):  # type: ignore[no-untyped-def]
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return pack("F32", data, values.shape, kind=MatrixKind.F32)


PARTS = (28, 100, 4)
"""Bytes of a block in the views that checkpoints are copied to."""


class RecurrentSteps:
    """Sequences by slot, each with a state of its own, and memory for checkpoints."""

    def __init__(self, program: Program, slots: int, threads: int) -> None:
        self.program = program
        self._decoder = Decoder(program, 16, 1, cache="float32", threads=threads)
        numbers = program.state_numbers
        self.pieces = -(-4 * numbers // sum(PARTS))
        self.memory = StateMemory(
            np.zeros((slots, numbers), dtype=np.float32),
            np.zeros((slots, program.last_numbers), dtype=np.float32),
            [np.zeros((64 * self.pieces, width), dtype=np.uint8) for width in PARTS],
        )

    def step(
        self,
        work: list[tuple[int, list[int]]],
        *,
        again: frozenset[int] = frozenset(),
        checkpoints: list[tuple[int, int]] | None = None,
    ) -> list[np.ndarray]:
        """work: (slot, tokens).  again: slots whose one token was computed before.  checkpoints:
        (row of the step, number of the copy), ascending.  Returns each sequence's rows."""
        counts = [len(tokens) for _, tokens in work]
        firsts = np.cumsum([0, *counts])
        kept = checkpoints or []
        states = StateMoves(
            self.memory,
            slots=_int32([slot for slot, _ in work]),
            again=_int32([slot in again for slot, _ in work]),
            first_checkpoint=_int32([sum(row < first for row, _ in kept) for first in firsts]),
            behind=_int32([row for row, _ in kept]),
            blocks=_int32([self.blocks(number) for _, number in kept]).reshape(-1, self.pieces),
        )
        step = DecoderStep(
            tokens=_int32([token for _, tokens in work for token in tokens]),
            first_row=_int32(firsts),
            starts=_int32([0] * len(work)),
            tables=_int32([]),
            first_block=_int32([0] * len(work)),
            states=states,
        )
        rows = self._decoder.logits(step, _int32(range(int(firsts[-1]))))
        return np.split(rows, firsts[1:-1])

    def blocks(self, number: int) -> list[int]:
        """The blocks of a copy: far from each other, and in no order."""
        return [(number + 64 * piece) * 7 % (64 * self.pieces) for piece in range(self.pieces)]

    def copy(self, number: int) -> np.ndarray:
        """What a checkpoint's blocks hold."""
        whole = [part[block] for block in self.blocks(number) for part in self.memory.parts]
        return np.concatenate(whole).view(np.float32)[: self.program.state_numbers]


def _int32(values: object) -> np.ndarray:
    return np.array(list(values), dtype=np.int32)  # type: ignore[call-overload]
