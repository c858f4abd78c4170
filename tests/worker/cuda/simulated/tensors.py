"""Tensors that say they are on a GPU, and what torch's operations do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tests.worker.cuda.simulated.device import Device, Memory, Misuse, caller

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")
aten = torch.ops.aten

WAITING = {
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.repeat_interleave.Tensor,
}
"""Operations whose result the host must know."""
VIEWS = {aten._unsafe_view.default, aten.lift_fresh.default, aten.detach.default}
"""They have their argument's memory, and don't say so."""
WHOLE = {aten.linear.default}
"""Made of others; computed as it is, as on a CPU."""
OF_CUDA: dict[Any, Callable[..., Tensor]] = {
    aten.mm.dtype: lambda left, right, dtype: left.to(dtype) @ right.to(dtype),
}
"""What torch has on CUDA only, of the same numbers."""


class CudaTensor(Tensor):
    """To torch's C++ a tensor of the device `meta`, to Python one of CUDA.

    shape_of: the same, for operations to find their results' shapes with.  content: where its
    values are, or will be.  memory: of the device.
    """

    shape_of: Tensor
    content: Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, shape_of: Tensor, content: Tensor, memory: Memory) -> CudaTensor:
        made = Tensor._make_subclass(cls, shape_of, False)
        made.shape_of, made.content, made.memory = shape_of, content, memory
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise Misuse(f"{func} of a device's tensor, and no device is there")

    @property
    def device(self) -> torch.device:
        return CUDA

    @property
    def is_cuda(self) -> bool:
        return True

    def tolist(self) -> Any:
        raise Misuse(f"{caller()} waits for the device: tolist")

    def numpy(self, *, force: bool = False) -> Any:
        raise Misuse(f"{caller()} wants a device's tensor as an array")

    def data_ptr(self) -> int:
        """The address in a memory that begins at 0: its alignment is right."""
        return self.storage_offset() * self.itemsize

    def __repr__(self) -> str:
        return f"CudaTensor({tuple(self.shape)}, {self.dtype})"


class Dispatch(TorchDispatchMode):
    """Sends what concerns the device into its queue, and lets the CPU do the rest."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
        ours = [each for each in given if isinstance(each, CudaTensor)]
        if not ours and CUDA not in (*args, kwargs.get("device")):
            return self._of_host(func, args, kwargs)
        if func in WAITING:
            raise Misuse(f"{caller()} waits for the device: {func}")
        if func is aten.copy_.default:
            return self._copy(*args, **kwargs)
        if func is aten._to_copy.default:
            return self._to(args[0], **kwargs)
        if _is_composite(func):
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        for each in given:
            if not isinstance(each, CudaTensor) and each.dim():
                raise Misuse(f"{caller()} mixes devices in {func}")
        return self._compute(func, args, kwargs)

    # ---- the host's own

    def _of_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in (aten.pin_memory.default, aten._pin_memory.default):
            return self._pinned(args[0].clone())
        if func is aten.is_pinned.default:
            return self._device.reaches(args[0])
        pinned = kwargs.pop("pin_memory", False)
        made = func(*args, **kwargs)
        return self._pinned(made) if pinned else made

    def _pinned(self, made: Tensor) -> Tensor:
        storage = made.untyped_storage()
        self._device.pin(storage.data_ptr(), storage.nbytes(), made)
        return made

    # ---- copies

    def _to(self, source: Tensor, **kwargs: Any) -> Tensor:
        """_to_copy: to another device, dtype, or both."""
        target = torch.device(kwargs.get("device") or source.device)
        dtype = kwargs.get("dtype") or source.dtype
        if isinstance(source, CudaTensor) and (target.type, dtype) == ("cuda", source.dtype):
            return source
        if target.type == "cuda":
            made = self.empty(source.shape, dtype)
        else:
            made = torch.empty(source.shape, dtype=dtype)
            if kwargs.get("non_blocking"):
                raise Misuse(f"{caller()} copies to memory that isn't pinned, without waiting")
        return self._copy(made, source, kwargs.get("non_blocking", False))

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if isinstance(target, CudaTensor) and isinstance(source, CudaTensor):
            return self._compute(aten.copy_.default, (target, source), {})
        device, host = self._device, source if isinstance(target, CudaTensor) else target
        into, out_of = (getattr(each, "content", each) for each in (target, source))
        device.refuse_in_capture("memory of the host is copied")
        for each in (target, source):
            if isinstance(each, CudaTensor):
                device.touch(each.memory)
        if target.shape != source.shape and isinstance(source, CudaTensor):
            raise Misuse("a copy to the host that has another shape")
        if self._note_wait(host, non_blocking):
            if host is target and not device.computes:
                return target.zero_()
            into.copy_(out_of)
            return target
        if target.dtype != source.dtype:
            raise Misuse(f"{caller()} converts on the way: torch waits for that")
        if host is source and device.writes(source):
            device.put(lambda: into.copy_(source))
        elif host is source:
            device.put(_sending(into, source), check=True)
        elif device.computes:
            target.view(torch.uint8).fill_(0xA5) if target.dim() else target.fill_(1)
            written = device.writing(target)
            device.put(lambda: (target.copy_(out_of), written()))
        else:
            target.zero_()
        return target

    def _note_wait(self, host: Tensor, non_blocking: bool) -> bool:
        """Whether the copy waits; it has waited then."""
        if non_blocking and not self._device.reaches(host):
            raise Misuse(f"{caller()} copies without waiting, but the memory isn't pinned")
        if not non_blocking:
            self._device.wait()
        return not non_blocking

    # ---- operations

    def empty(self, shape: Any, dtype: torch.dtype) -> CudaTensor:
        return self._new(torch.empty(shape, dtype=dtype, device=META))

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "device" in kwargs:
            kwargs["device"] = CPU if self._device.computes else META
            kwargs.pop("pin_memory", None)
        for each in tree_flatten((args, kwargs))[0]:
            if isinstance(each, CudaTensor):
                self._device.touch(each.memory)
        contents, options = tree_map(_content, (args, kwargs))
        kinds = [each.alias_info for each in func._schema.returns]
        if func in VIEWS or any(kind is not None and not kind.is_write for kind in kinds):
            shapes = func(*tree_map(_shape, args), **kwargs)
            return self._views(shapes, func(*contents, **options), args)
        work = _bound(func, contents, options)
        if any(kind is not None for kind in kinds):
            self._device.put(work)
            return args[0]
        return self._result(work, func, args, kwargs)

    def _views(self, shapes: Any, contents: Any, args: tuple[Any, ...]) -> Any:
        (memory, *_) = (each.memory for each in args if isinstance(each, CudaTensor))
        return tree_map(lambda shape, content: CudaTensor(shape, content, memory), shapes, contents)

    def _result(
        self, work: Callable[[], Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if "device" in kwargs:
            kwargs = kwargs | {"device": META}
        try:
            shapes = func(*tree_map(_shape, args), **tree_map(_shape, kwargs))
        except NotImplementedError as error:
            raise Misuse(f"{caller()} waits for the device: the shape of {func}") from error
        flat, form = tree_flatten(shapes)
        made = [self._new(each) for each in flat]
        if func is not aten.empty.memory_format:
            targets = [each.content for each in made]

            def run() -> None:
                for target, value in zip(targets, tree_flatten(work())[0], strict=True):
                    target.copy_(value)

            self._device.put(run)
        return tree_unflatten(made, form)

    def _new(self, like: Tensor) -> CudaTensor:
        """A tensor of no value yet."""
        memory = self._device.allocate(like.untyped_storage().nbytes())
        if not self._device.computes:
            return CudaTensor(like, like, memory)
        content = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        if content.numel() and content.dim():
            # Whatever order its dimensions lie in.
            torch.empty(0, dtype=torch.uint8).set_(content.untyped_storage()).fill_(0xFF)
        return CudaTensor(like, content, memory)


def _sending(into: Tensor, pinned: Tensor) -> Callable[[], None]:
    then = pinned.clone()

    def work() -> None:
        if not torch.equal(_bits(then), _bits(pinned)):
            raise Misuse("a pinned buffer was written while a copy from it was queued")
        into.copy_(then)

    return work


def _is_composite(func: Any) -> bool:
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    return func not in WHOLE and known(func.name(), "CompositeImplicitAutograd")


def _bound(func: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    on_cpu = OF_CUDA.get(func, func)
    return lambda: on_cpu(*args, **kwargs)


def _content(value: Any) -> Any:
    return value.content if isinstance(value, CudaTensor) else value


def _shape(value: Any) -> Any:
    if isinstance(value, CudaTensor):
        return value.shape_of
    return value.to(META) if isinstance(value, Tensor) else value


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
