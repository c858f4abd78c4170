"""The input of a forward pass, and what is drafted after its works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.media.interface import BatchMedia

Drafts = Mapping[int, Sequence[int]]
"""Drafted token ids of each slot, which are computed after its own tokens. Slots without any are
left out."""

NO_DRAFTS: Drafts = {}


@dataclass(frozen=True)
class Batch:
    """The input of one forward pass. A row is one token; the rows of a sequence are consecutive."""

    tokens: np.ndarray
    """[rows] int64 token ids. An id below 0 stands for the newest token of slot -1 - id, which only
    the device knows so far (see DeviceForward)."""
    tables: Sequence[np.ndarray]
    """For each sequence its KV blocks in token order (int64), enough for all tokens that it has
    after the step. They must be read before the next plan is applied, which changes the array
    that they are views of."""
    starts: np.ndarray  # [sequences] int64, tokens computed before.
    counts: np.ndarray  # [sequences] int64, tokens computed in this step, each at least 1.
    more_tables: tuple[Sequence[np.ndarray], ...] = ()
    """For each further KV group the block tables of all sequences (see `tables`). The entries of
    blocks that a group's layers don't see from `starts` on mean nothing: those blocks must not be
    read."""
    slots: Sequence[int] = ()
    """For each sequence the number of its slot. Needn't be set for a model without recurrent
    layers."""
    media: BatchMedia | None = None
    """The rows that are media; None if all are text."""
    adapters: BatchAdapters | None = None
    """The sequences' adapters; None if no sequence has one."""
