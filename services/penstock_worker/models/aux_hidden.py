"""What a pass gives besides logits: each row's residual after some of the layers.

Heads draft from it (see speculation.draft_head).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class AuxHidden:
    """The layers after which hidden states are taken, and those of each thread's last pass."""

    def __init__(self, behind: tuple[int, ...]) -> None:
        """`behind`: numbers of layers; 0 is the embedding."""
        self.behind = behind
        self._last = threading.local()

    def keep(self, residuals: dict[int, Tensor]) -> None:
        """Keeps a pass's residuals, [rows, hidden] each, or of several, [rows, count, hidden], by
        the number of layers before them."""
        self._last.found = [residuals[number].flatten(1) for number in self.behind]

    def put(self, taken: Tensor) -> None:
        """Keeps what was taken of a pass and lies side by side already, [rows, hidden of all
        layers]."""
        self._last.found = [taken]

    def taken(self, rows: int) -> Tensor:
        """Returns those of this thread's last pass, once: [rows, hidden of all layers side by
        side]. What was padded after `rows` is left out."""
        found = [each[:rows] for each in self._last.found]
        self._last.found = []
        return found[0] if len(found) == 1 else torch.cat(found, 1)
