"""Recurrent layers: what their phases read, and the states of a step's sequences."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock_kernels.cpu.structs import PkRecurrent, PkStates

MAX_KERNEL = 64
MAX_KEY_DIM = 4096
MAX_HEADS = 4096
_UNLIMITED = float(np.finfo(np.float32).max)


class RecurrentKind(enum.IntEnum):
    """PkRecurrentKind."""

    SHORT_CONV = 0
    GATED_DELTA = 1
    MAMBA2 = 2
    MAMBA1 = 3


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """A recurrent layer but for its products. What its features and its state are made of is said
    in csrc/layer_types.h, at PkRecurrent; columns are those of features."""

    kind: RecurrentKind
    conv: np.ndarray
    """[kernel, channels] float32, the present token's factor last."""
    width: int
    """Numbers of what the scan gives."""
    first: int
    """Column of the first channel."""
    apart: tuple[int, int] | None = None
    """Columns of the first key and the first value of a gated delta net; None: they follow
    queries."""
    gate: int
    """Column of the gates."""
    strength: int = 0
    """Column of the corrections' strengths; of a short convolution, of its result's gates; of Mamba
    1, of the map into the state, and after it of the one out of it."""
    time: int = 0
    """Column of the steps in time."""
    by_channel: bool = False
    """Whether each number of a head's key has a step in time, and decays by itself."""
    logistic_gate: bool = False
    decay_bound: float = 0.0
    """What the logarithms of decays `by_channel` are above; 0: there is no bound."""
    strongest: float = 1.0
    """What a correction of full strength is."""
    state: int = 0
    """Index at which the layer's numbers begin in a sequence's state."""
    last: int = 0
    """Index at which the layer's results begin in those of a sequence's last token."""
    key_heads: int = 0
    """Heads of keys; for Mamba 2 its groups."""
    heads: int = 0
    key_dim: int = 0
    """Numbers of a key; for Mamba 2 numbers of the state for each of a head's values."""
    value_dim: int = 0
    tiled: bool = False
    norm_groups: int = 1
    steps: tuple[float, float | None] = (0.0, None)
    """The smallest step in time and the largest; None: there is none."""
    norm_eps: float = 0.0
    conv_bias: np.ndarray | None = None
    """What is added to each channel of the convolution, [channels] float32; None for nothing."""
    rate: np.ndarray | None = None
    """[heads] float32, negative; so many are `skip` and `time_bias`, of which there are [heads,
    key_dim] where decays are `by_channel`. Of Mamba 1, [key_dim, width], and the others have
    [width]."""
    time_bias: np.ndarray | None = None
    skip: np.ndarray | None = None
    norm: np.ndarray | None = None
    """[value_dim] float32; of Mamba 2 [width]; of Mamba 1, of the maps, [2, key_dim], or None."""

    @property
    def state_numbers(self) -> int:
        """float32 numbers of a sequence's state in the layer."""
        kernel, channels = self.conv.shape
        return int((kernel - 1) * channels + self.width * self.key_dim)

    def struct(self) -> PkRecurrent:
        """Valid as long as this object is alive."""
        kernel, channels = self.conv.shape
        least, most = self.steps
        queries = self.key_heads * self.key_dim
        keys, values = self.apart or (self.first + queries, self.first + 2 * queries)
        if self.kind is not RecurrentKind.GATED_DELTA:
            keys = values = self.first
        return PkRecurrent(
            kind=self.kind,
            kernel=kernel,
            channels=channels,
            width=self.width,
            key_heads=self.key_heads,
            heads=self.heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            tiled=self.tiled,
            norm_groups=self.norm_groups,
            first=self.first,
            keys=keys,
            values=values,
            gate=self.gate,
            strength=self.strength,
            time=self.time,
            by_channel=self.by_channel,
            logistic_gate=self.logistic_gate,
            least_step=least,
            most_step=_UNLIMITED if most is None else most,
            strongest=self.strongest,
            norm_eps=self.norm_eps,
            decay_bound=self.decay_bound,
            state=self.state,
            last=self.last,
            conv=_address(self._conv),
            conv_bias=_address(self._conv_bias),
            rate=_address(self.rate),
            time_bias=_address(self.time_bias),
            skip=_address(self.skip),
            norm=_address(self.norm),
        )

    @cached_property
    def _conv(self) -> np.ndarray:
        return _padded(self.conv)

    @cached_property
    def _conv_bias(self) -> np.ndarray | None:
        return None if self.conv_bias is None else _padded(self.conv_bias[None])


def _padded(rows: np.ndarray) -> np.ndarray:
    """Rows of which sixteen numbers can be read from any one on (pk::conv_stride)."""
    count, channels = rows.shape
    padded = np.zeros((count, -(-channels // 16) * 16 + 16), dtype=np.float32)
    padded[:, :channels] = rows
    return padded


def _address(array: np.ndarray | None) -> int | None:
    return None if array is None else int(array.ctypes.data)


@dataclass(frozen=True)
class StateMemory:
    """States of slots, and where checkpoints of them are kept."""

    live: np.ndarray
    """The live states, [slots, numbers of all layers] float32."""
    last: np.ndarray
    """[slots, numbers] float32: what all scans gave for a slot's last token."""
    parts: Sequence[np.ndarray]
    """Views of the KV cache, each [blocks, bytes] uint8; row b of all of them is block b. A
    checkpoint's numbers are in the bytes of several blocks one after another."""

    @cached_property
    def addresses(self) -> np.ndarray:
        """[parts] uint64: of the views."""
        return np.array([part.ctypes.data for part in self.parts], dtype=np.uint64)

    @cached_property
    def part_bytes(self) -> np.ndarray:
        """[parts] int64: bytes of a block in each view."""
        return np.array([part.shape[1] for part in self.parts], dtype=np.int64)

    def check(self, state_numbers: int, last_numbers: int) -> None:
        """Raises ValueError for memory of another size."""
        for name, array, numbers in (
            ("live", self.live, state_numbers),
            ("last", self.last, last_numbers),
        ):
            good = array.dtype == np.float32 and array.flags.c_contiguous
            if not good or array.ndim != 2 or array.shape[1] != numbers:
                raise ValueError(
                    f"{name} states are {array.dtype} of shape {array.shape}; contiguous float32 of"
                    f" {numbers} numbers a slot are needed"
                )


@dataclass(frozen=True)
class StateMoves:
    """What a step does with its sequences' states. All arrays are int32 and contiguous."""

    memory: StateMemory
    slots: np.ndarray
    """[sequences], each another one."""
    again: np.ndarray
    """[sequences]: 1 where the one row of the sequence is the token that its state stands for."""
    first_checkpoint: np.ndarray
    """[sequences + 1]: which of the checkpoints are each sequence's."""
    behind: np.ndarray
    """[checkpoints]: rows of the step, ascending."""
    blocks: np.ndarray
    """[checkpoints, pieces]: where the state after that row goes."""

    def struct(self) -> PkStates:
        """Valid as long as this object is alive."""
        memory = self.memory
        return PkStates(
            pieces=self.blocks.shape[1],
            num_parts=len(memory.parts),
            live=memory.live.ctypes.data,
            last=memory.last.ctypes.data,
            slots=self.slots.ctypes.data,
            again=self.again.ctypes.data,
            first_checkpoint=self.first_checkpoint.ctypes.data,
            behind=self.behind.ctypes.data,
            blocks=self.blocks.ctypes.data,
            parts=memory.addresses.ctypes.data,
            part_bytes=memory.part_bytes.ctypes.data,
            block_bytes=int(memory.part_bytes.sum()),
        )
