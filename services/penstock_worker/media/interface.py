"""What media are to a batch, and what encodes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.protocol.from_worker import MediaFailed, MediaReady, MediaTaken
from penstock.protocol.worker_resources import DropMedia, LoadMedia, LoadMediaChunk
from penstock_worker.media.pieces import Pieces

if TYPE_CHECKING:
    from torch import Tensor

Tell = Callable[[MediaTaken | MediaReady | MediaFailed], None]
"""Sends an answer to the engine core. From any thread."""

Incoming = LoadMedia | LoadMediaChunk | DropMedia

MEL = "mel"
"""The name of a prepared sound's tensor: float32 [chunks, bins, windows]."""


@dataclass(frozen=True)
class BatchMedia:
    """What stands in the place of a batch's placeholders."""

    rows: np.ndarray
    """[n] int64: rows of the batch, each once."""
    embeddings: Tensor | None
    """[n, width], for these rows instead of their tokens' embeddings (see VisionSpec.row_width);
    None where there are none, and in a later pipeline stage."""
    positions: np.ndarray | None = None
    """[3, rows] int64: time, row and column of every row, of a model whose rotary pairs turn by
    them; None: rows count."""
    last_seen: np.ndarray | None = None
    """[rows] int64: the last position that every row sees, not before its own, of a model whose
    spans are seen as a whole; None: each row sees no further than itself."""
    between: np.ndarray | None = None
    """[rows] bool: rows between joined spans, which see no row after themselves, whatever
    `last_seen` says, and which no row before them sees; None: there are none."""
    spans: Sequence[Sequence[tuple[int, int]]] | None = None
    """First and end position of the rows of each picture of every sequence of the batch, of a model
    whose pictures are seen in some layers alone."""


class Sees(Protocol):
    """The part of a model that encodes media, on the ranks of the first stage."""

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        """Returns MediaReady.work of a prepared item. Raises UnfitItem for one that can't be
        encoded, or isn't what was said of it. From any thread."""

    def encode(self, tensors: Mapping[str, np.ndarray]) -> Tensor:
        """Returns an item's encoding, [rows, width]: see VisionSpec.row_width."""

    def pieces(self, tensors: Mapping[str, np.ndarray]) -> Pieces[Tensor]:
        """`encode` with pauses."""
