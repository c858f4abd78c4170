"""The interface between a proposer and the backends that compute heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from penstock.errors import UnsupportedModel
from penstock.model.config import HeadConfig
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

ID_GROUPS = "masked_embedding"
"""How the names begin of the tensors that say which groups an assistant's ids are in."""
UNLIKELY = -1e30
"""The logit of an id that a head never drafts: finite, and below all others."""


class OpenHead(Protocol):
    """Opens a head's weights."""

    def __call__(
        self,
        dtype: torch.dtype,
        device: torch.device | None = None,
        *,
        keep_quantised: bool = False,
    ) -> Weights:
        """Opens a checkpoint's weights (see open_weights)."""


class HeadForward(Protocol):
    """The weights and the KV cache of one layer of a head. Row i of the first layer is made of the
    model's hidden state at position i and of the token after it, and says what follows that token.
    Row i of a further one is made of row i of the layer before it, and of one token later.

    An assistant is one of these with all its layers, and without a cache: `step` stores nothing."""

    @property
    def layers_done(self) -> int:
        """Layers computed since the start. May be read from another thread during a pass."""

    def cancel(self) -> None:
        """Called when the worker stops: a pass that is being computed may raise StepCancelled."""

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns views of the KV cache, each [blocks, bytes] uint8 (see Forward.kv_blocks)."""

    @property
    def like(self) -> Tensor:
        """A tensor of no rows, [0, hidden numbers], of the dtype of hidden states."""

    def hidden(self, taken: Tensor) -> Tensor:
        """Maps what was taken of the model, [rows, width], to hidden states as `step` reads them,
        [rows, hidden]."""

    def step(
        self, batch: Batch, hidden: Tensor, rows: np.ndarray, onward: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Computes every row of the batch, of which `hidden` has the hidden states, and stores its
        keys and values. `batch.tokens` are the tokens after each.

        `rows`, [n], and `onward`, [m], are numbers of rows, int64, and may be empty. Returns logits
        of `rows`, [n, ids of the model] float32, and of `onward` the hidden states that the next
        layer, or the next draft, is made of, [m, hidden].
        """


class DeviceHead(HeadForward, Protocol):
    """The pass of a head on a device with a queue: nothing waits. Hidden states and logits are on
    the device."""

    def blocks(self) -> list[Tensor]:
        """Returns views of the KV cache on the device, as DeviceForward.blocks has them."""


class DeviceHeadBuild(Protocol):
    """A head's weights on a device. Called with a number of KV blocks, it makes the head."""

    def __call__(self, blocks: int) -> DeviceHead: ...

    def rehearse(self) -> None:
        """Queues passes that launch every variant of the kernels over a KV cache of one block."""

    def widest_pass(self) -> None:
        """Queues a pass over as many rows as one may have, over a KV cache of one block."""

    def longest_pass(self) -> None:
        """Queues a pass over one row of each sequence at the longest possible context, over a KV
        cache of one block."""


@dataclass(frozen=True)
class HeadRecipe:
    """How a layer of a head will be computed."""

    dtype: str  # For logs.
    block_bytes: int
    build: Callable[[], Callable[[int], HeadForward]]
    """Reads the weights, and returns a function that makes the head for a given number of KV
    blocks."""


@dataclass(frozen=True)
class DeviceHeadRecipe(HeadRecipe):
    """How a layer of a head will be computed on a device with a queue."""

    build: Callable[[], DeviceHeadBuild]


@dataclass(frozen=True)
class AssistantRecipe:
    """How a head that borrows keys and values will be computed."""

    dtype: str  # For logs.
    build: Callable[[], Callable[[Forward], HeadForward]]
    """Reads the weights, and returns a function that makes the head for the served model's forward
    pass. Its rows are those in front of a sequence's newest token, which is the batch's; it stores
    nothing."""


@dataclass(frozen=True)
class LikelyIds:
    """The ids that are drafted at all: those of the likeliest groups. They lie together as what
    they mean does, so that products of few rows could do (transformers'
    Gemma4AssistantMaskedEmbedder)."""

    centroids: Tensor
    """[groups, hidden] float32."""
    ids: Tensor
    """[groups, ids of each] int64."""
    likeliest: int
    """How many groups."""

    @staticmethod
    def take(weights: Weights, config: HeadConfig) -> LikelyIds | None:
        """None: all ids are drafted. Raises UnsupportedModel."""
        count, vocab = config.id_groups, config.vocab_size
        if not count:
            return None
        shape = (count, config.hidden_size)
        centroids = weights.take(f"{ID_GROUPS}.centroids.weight", shape, torch.float32)
        ids = weights.take_table(f"{ID_GROUPS}.token_ordering", (vocab,))
        if ids.min() < 0 or ids.max() >= vocab or len(ids.unique()) < vocab:
            raise UnsupportedModel(
                f"tensor {ID_GROUPS}.token_ordering names ids from {int(ids.min())} to"
                f" {int(ids.max())}; each below {vocab} has to be there once"
            )
        return LikelyIds(centroids, ids.view(count, -1), config.likeliest_groups)

    def only(self, logits: Tensor, normed: Tensor) -> Tensor:
        """Maps logits, [rows, vocab], to those with all others UNLIKELY. `normed`: what they were
        made of, [rows, hidden]."""
        best = torch.topk(normed.float() @ self.centroids.T, self.likeliest).indices
        ids = self.ids[best].flatten(1)
        return torch.full_like(logits, UNLIKELY).scatter_(1, ids, logits.gather(1, ids))


def in_served_vocabulary(logits: Tensor, ids: Tensor | None, count: int) -> Tensor:
    """Maps a head's logits, [rows, own ids], to [rows, count], the served model's ids. `ids`: those
    of the head's own; None: they are the same."""
    if ids is None:
        return logits
    found = logits.new_full((len(logits), count), UNLIKELY)
    found[:, ids] = logits
    return found
