"""What recurrent layers and the states of sequences ask of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Scan: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""A Mixer's `scan`."""


class StepStates(Protocol):
    """The states of a step's sequences."""

    def scan(self, layer: int, features: Tensor, scan: Scan) -> Tensor:
        """Calls `scan` for each sequence, with its rows of `features` and its own state in that
        layer: once, or in pieces.

        `layer`: counted from this rank's first layer.
        `features`: [rows, F], of all rows of the step.
        Returns what `scan` returned for each row, [rows, V]; zeros for rows of no sequence.
        """


class Mixer(Protocol):
    """What stands in the attention's place in a recurrent layer. Without state of its own."""

    def project(self, hidden: Tensor) -> Tensor:
        """Maps [rows, hidden] to features, [rows, F]. A row's depend on that row alone."""

    def scan(self, features: Tensor, state: Tensor) -> Tensor:
        """Goes through consecutive tokens of one sequence, in order.

        `features`: [tokens, F], at least one token.
        `state`: [state_numbers] float32, contiguous: that of the tokens before, zeros if there are
        none. Becomes that of these tokens too.

        Returns [tokens, V] float32. The same tokens give the same bits, results and state, however
        they are divided into calls.
        """

    def finish(self, mixed: Tensor, features: Tensor) -> Tensor:
        """Maps what `scan` returned and features to [rows, hidden]. A row's depend on that row
        alone."""


class NoStates:
    """Stands for the states in a step of a model without recurrent layers."""

    def scan(self, layer: int, features: Tensor, scan: Scan) -> Tensor:
        raise RuntimeError(f"layer {layer} is recurrent, and the step has no states")


NO_STATES: StepStates = NoStates()
