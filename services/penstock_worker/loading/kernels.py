"""What a loaded model does so that no step waits for a kernel or a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _nothing() -> None:
    """Does nothing, for a model that one rank computes, or that isn't captured."""


@dataclass(frozen=True)
class LoadedKernels:
    """The functions for the kernels and graphs of a model on a GPU. All are called by the thread
    that computes."""

    tell_of_compilations: Callable[[Callable[[str], None] | None], None]
    """Calls a function from now on with the name of each kernel that is compiled; None: calls
    nothing."""
    rehearse: Callable[[], None] = _nothing
    """Queues the steps that a rank which loads this model queues with the others of its group,
    before they agree on the number of KV blocks. A model that is loaded already does so again in
    each further group, since the ranks' messages must match."""
    capture: Callable[[], None] = _nothing
    """Captures the model's steps (see DeviceForward.capture)."""


NO_KERNELS = LoadedKernels(lambda told: None)
"""The functions of a model on a CPU, where nothing is compiled or captured."""


def triton_kernels(
    rehearse: Callable[[], None] = _nothing, capture: Callable[[], None] = _nothing
) -> LoadedKernels:
    """Returns the functions of a model whose kernels Triton compiles."""
    # Imported here: a worker on a CPU needs no Triton, which takes 65 MB and half a second.
    from penstock_kernels.triton.compilations import tell_of_compilations

    return LoadedKernels(tell_of_compilations, rehearse, capture)
