"""Triton's interpreter, for tests of what runs on CUDA: importing this module, as the conftest of
such tests does, loads the kernels in it where there is no CUDA, with products that add up in one
order on every processor.

Triton reads TRITON_INTERPRET while its decorators run, so the variable is set for these imports
only: processes that other tests start don't inherit it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _compute_quietly() -> None:
    """The interpreter computes in NumPy, which warns of exp's overflow, of inf - inf, and of what
    comes of memory that nobody has written: a profile run's longest decode attends to a whole KV
    pool of it, and nobody reads the result. A GPU warns of nothing."""
    from triton.runtime.interpreter import InterpretedFunction

    run = InterpretedFunction.run

    def quiet(self: Any, *args: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(self, *args, **options)

    InterpretedFunction.run = quiet


if DEVICE.type == "cpu":
    if "triton" in sys.modules and not sys.modules["triton"].knobs.runtime.interpret:
        raise RuntimeError("triton was imported before TRITON_INTERPRET could be set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        import penstock_kernels.triton

        # The interpreter imports it at the first launch, and it looks at the variable too.
        importlib.import_module("triton.experimental.gluon")
        for module in pkgutil.walk_packages(
            penstock_kernels.triton.__path__, "penstock_kernels.triton."
        ):
            importlib.import_module(module.name)
        from tests import ordered_product, quick_interpreter

        ordered_product.use_in_interpreter()
        quick_interpreter.use_quick_interpreter()
        _compute_quietly()


def one_kernel_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For ranks that are threads: the interpreter keeps its place in the grid in a global, and puts
    its own members in triton.language's place while a kernel runs."""
    from triton.runtime import interpreter

    lock, run = threading.Lock(), interpreter.InterpretedFunction.run

    def locked(self: Any, *args: Any, **options: Any) -> Any:
        with lock:
            return run(self, *args, **options)

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", locked)
