"""Launches of Triton's kernels, in its interpreter or not, as work of the simulated device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import triton
from torch import Tensor

from tests.worker.cuda.simulated.device import Device, Misuse
from tests.worker.cuda.simulated.tensors import CudaTensor

MOST = (2**31 - 1, 65535, 65535)
"""Programs along each axis of a grid."""

Launch = Callable[..., object]


def launching(
    now: Callable[[], Device], run: Launch | None, compiled: Launch | None = None
) -> Launch:
    """In place of a kernel's `run`.  now: the device of the host that asks.  run: computes it,
    given tensors of the CPU.  compiled: is told the launch as it is."""

    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        device, name = now(), kernel.fn.__name__
        sizes = tuple(grid) if isinstance(grid, tuple) else tuple(grid(kwargs))
        if not all(0 < size <= most for size, most in zip(sizes, MOST, strict=False)):
            raise Misuse(f"{name} is launched with grid {sizes}")
        for value in (*args, *kwargs.values()):
            if isinstance(value, CudaTensor):
                device.touch(value.memory)
            elif isinstance(value, Tensor):
                raise Misuse(f"{name} is launched with a tensor of the {value.device}")
        key = (name, *_specialised(kernel, args, kwargs))
        if device.recording is not None and key not in device.launched:
            raise Misuse(f"{name} would be compiled while a graph is captured")
        if key not in device.launched and triton.knobs.runtime.jit_post_compile_hook:
            triton.knobs.runtime.jit_post_compile_hook(
                key=str(key),
                repr=name,
                fn=SimpleNamespace(name=name),
                compile={},
                is_manual_warmup=False,
                already_compiled=False,
            )
        device.launched[key] = device.launched.get(key, 0) + 1
        device.grids.append((name, sizes))
        if compiled is not None:
            compiled(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        if run is not None and not (device.rehearsing and device.recording is None):
            inner = [getattr(each, "content", each) for each in args]
            named = {name: getattr(each, "content", each) for name, each in kwargs.items()}
            device.put(lambda: run(kernel, *inner, grid=grid, warmup=warmup, **named))

    return launch


def rehearsing(now: Callable[[], Device], launches: Callable[..., Any]) -> Callable[..., Any]:
    """In place of what launches kernels for their own sake. What it captures is computed when it is
    replayed."""

    @functools.wraps(launches)
    def rehearse(*args: Any, **kwargs: Any) -> Any:
        device = now()
        before, device.rehearsing = device.rehearsing, True
        try:
            return launches(*args, **kwargs)
        finally:
            device.rehearsing = before

    return rehearse


def _specialised(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[object]:
    """What Triton compiles a kernel anew for."""
    plain = set(getattr(kernel, "kwargs", {}).get("do_not_specialize") or ())
    plain |= {each.name for each in getattr(kernel, "params", ()) if each.do_not_specialize}
    signature = inspect.signature(kernel.fn).parameters
    constants = {name for name, each in signature.items() if "constexpr" in str(each.annotation)}
    key: list[object] = []
    for name, value in (dict(zip(kernel.arg_names, args, strict=False)) | kwargs).items():
        if isinstance(value, Tensor):
            key.append((name, value.dtype, value.data_ptr() % 16 == 0))
        elif name in constants or name not in signature:  # Options of the launch, too.
            key.append((name, value))
        elif isinstance(value, int) and name not in plain:
            key.append((name, value == 1, value % 16 == 0, value >= 2**31))
        else:
            key.append((name, type(value)))
    return sorted(key, key=str)
