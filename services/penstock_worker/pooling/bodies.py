"""Models without their output heads, as pooling steps compute them: encoders and decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.model.config import EncoderConfig
from penstock.protocol.to_worker import SlotWork
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.batch.logits import in_torch
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import PlanError, Slots
from penstock_worker.device.memory import memory_of
from penstock_worker.forward.interface import Forward
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.pooling.adapters import PoolAdapters


@dataclass(frozen=True)
class Hidden:
    """The output of one step, where it was computed."""

    vectors: Tensor
    """[works, hidden] float32: one vector per input; after a chunk, that of its last token so
    far."""
    rows: Tensor | None
    """[tokens, hidden]: the vectors of all tokens; None if only the last ones are kept."""


class Body(Protocol):
    """A model without its output head. On a device, its work is queued on torch's current
    stream."""

    @property
    def device(self) -> torch.device: ...

    @property
    def layers_done(self) -> int:
        """Layers computed, or queued, since the start. May be read from another thread."""

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        """Computes these works, or queues them without waiting for the device. On the CPU it may be
        called from several threads at once, with works that have no slot in common. The rows of an
        input have the same bits whatever else is computed. Raises torch.OutOfMemoryError."""

    def cancel(self) -> None:
        """Called when the worker stops: a step that is being computed may raise StepCancelled."""


class DecoderBody:
    """A decoder's layers and its last norm. Inputs are computed in chunks over the KV cache, and
    the last token's vector is the result."""

    def __init__(
        self,
        forward: Forward,
        device: torch.device,
        adapters: PoolAdapters | None = None,
        media: MediaEncodings | None = None,
    ) -> None:
        """`forward` has the model's last norm in place of its head, so that its "logits" are hidden
        vectors. `adapters`: those of sequences. `media`: what their placeholders stand for."""
        self._media = () if media is None else (media,)
        self.device = device
        self._forward = forward
        self._adapters = adapters or PoolAdapters()

    @property
    def layers_done(self) -> int:
        return self._forward.layers_done

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        batch = prepare_inputs(works, slots, self._media)
        batch = replace(batch, adapters=self._adapters.of_batch(works))
        vectors = in_torch(self._forward.logits(batch, np.cumsum(batch.counts) - 1))
        return Hidden(vectors.float(), None)

    def cancel(self) -> None:
        self._forward.cancel()


@dataclass(frozen=True)
class Inputs:
    """The inputs of one step of an encoder."""

    tokens: np.ndarray
    """[tokens] int64, one input after another."""
    types: np.ndarray
    """[tokens] int64, the token type of each."""
    lengths: list[int]
    """Number of tokens of each input."""
    seen: list[int] | None = None
    """How many of its tokens all tokens of an input see: its first ones; None: all."""


def inputs_of(works: list[SlotWork], slots: Slots, config: EncoderConfig) -> Inputs:
    """Raises PlanError for an input that isn't computed whole, and ValueError for a token type that
    the model doesn't have."""
    tokens: list[int] = []
    seen: list[int] = []
    types = bytearray()
    for work in works:
        slot = slots[work.slot]
        if work.start or work.count != len(slot.token_ids):
            raise PlanError(f"slot {work.slot}: an encoder's input is computed whole")
        given = slot.pooling.token_types if slot.pooling is not None else b""
        limit = slot.pooling.seen if slot.pooling is not None else 0
        seen.append(min(limit, work.count) or work.count)
        tokens += slot.token_ids
        types += given or bytes(work.count)
    known = np.frombuffer(types, dtype=np.uint8).astype(np.int64)
    most = config.layers.token_types
    if most and known.size and int(known.max()) >= most:
        raise ValueError(f"a token type is {known.max()}; the model has {most}")
    lengths = [work.count for work in works]
    return Inputs(
        np.array(tokens, dtype=np.int64), known, lengths, None if seen == lengths else seen
    )


class Encoder(Protocol):
    """An encoder's layers."""

    @property
    def config(self) -> EncoderConfig: ...

    @property
    def layers_done(self) -> int:
        """How many layers are done (see Body)."""

    def rows(self, inputs: Inputs, adapters: BatchAdapters | None) -> Tensor:
        """Returns the last layer's output, [rows, hidden]: the tokens' and, if the kernels need it,
        padding. `adapters`: those of the inputs. Raises ValueError for an input that is too
        long."""

    def count_layer(self) -> None:
        """Counts a layer that isn't one of the encoder's. Raises StepCancelled."""

    def cancel(self) -> None:
        """Cancels what is being computed (see Body)."""


PoolInputs = Callable[[Tensor, list[int]], Tensor]
"""Makes one vector of each input, [inputs, hidden] float32, from the rows of all, [rows, hidden],
and the inputs' lengths."""


class EncoderBody:
    """An encoder's layers, and the pooling of each input's rows. Every work is a whole input."""

    def __init__(
        self,
        encoder: Encoder,
        pool: PoolInputs,
        device: torch.device,
        adapters: PoolAdapters | None = None,
    ) -> None:
        """`adapters`: those of inputs."""
        self.device = device
        self._encoder = encoder
        self._pool = pool
        self._memory = memory_of(device)
        self._adapters = adapters or PoolAdapters()

    @property
    def layers_done(self) -> int:
        return self._encoder.layers_done

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        inputs = inputs_of(works, slots, self._encoder.config)
        return self.compute(inputs, self._adapters.of_batch(works))

    def rows(self, works: list[SlotWork], slots: Slots) -> Tensor:
        """Returns the vectors of all tokens, [rows, hidden]. Raises what `hidden` raises."""
        inputs = inputs_of(works, slots, self._encoder.config)
        with self._releasing():
            return self._encoder.rows(inputs, self._adapters.of_batch(works))

    def compute(self, inputs: Inputs, adapters: BatchAdapters | None = None) -> Hidden:
        """`adapters`: those of the inputs. Raises torch.OutOfMemoryError."""
        with self._releasing():
            rows = self._encoder.rows(inputs, adapters)
            return Hidden(self._pool(rows, inputs.lengths), rows)

    def count_layer(self) -> None:
        """Counts a layer that isn't one of the encoder's. Raises StepCancelled."""
        self._encoder.count_layer()

    def cancel(self) -> None:
        self._encoder.cancel()

    @contextmanager
    def _releasing(self) -> Iterator[None]:
        """Gives memory back where there isn't enough of it."""
        try:
            yield
        except torch.OutOfMemoryError:
            self._memory.release()
            raise
