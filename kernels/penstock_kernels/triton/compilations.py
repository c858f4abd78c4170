"""Reports the kernels that Triton compiles in this process, and those that a GPU can't launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
from triton.runtime.errors import OutOfResources

KernelTooLarge = OutOfResources
"""Raised by a launch that wants more of something than a processor of the GPU has."""


def tell_of_compilations(told: Callable[[str], None] | None) -> None:
    """Calls `told` from now on with the name of each kernel that was compiled for a launch, or read
    from Triton's folder of compiled kernels, in the thread that launches; None: calls nothing.

    Triton has one such hook: this replaces the one set before.
    """
    hook = None if told is None else _Hook(told)
    triton.knobs.runtime.jit_post_compile_hook = hook


class _Hook:
    """Called as Triton calls its JITHook. Gives None, since anything else would end the launch."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._report = told

    def __call__(self, *, fn: Any, **_: Any) -> None:
        self._report(fn.name)
