"""Stacks of experts' matrices as gpt-oss's safetensors files have them, cut into matrices.

A stack is one tensor for all experts. The rows of matrices that share their input alternate in it:
gate, up, gate, up; in Qwen3-VL's files one matrix follows the other. With NAME as the stack's,
there are

- NAME: floats, [experts, inputs, outputs], so that each matrix is transposed; or
- NAME_blocks uint8 [experts, outputs, inputs / 32, 16] and NAME_scales uint8 [experts, outputs,
  inputs / 32]: MXFP4 (OCP microscaling formats, 2023). A byte has two neighbouring numbers, the
  first in its low bits; a scale is a power of two (e8m0); and
- NAME_bias: floats, [experts, outputs].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from penstock.errors import UnsupportedModel
from penstock.model.config import ModelConfig
from penstock_worker.weights.stored import StoredTensor

_GROUP = 32
_FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def separated(
    tensors: Mapping[str, StoredTensor],
    stacks: Mapping[str, tuple[str, ...]],
    *,
    alternate: bool = True,
) -> dict[str, StoredTensor]:
    """Replaces stacks by their matrices and biases. `stacks` is TensorNames.alternating, or
    TensorNames.stacked of floats whose matrices don't `alternate`; the tensors' names are those of
    a layer's modules after `layers.N.`. Raises UnsupportedModel for tensors of other shapes, and
    for others than floats where matrices don't alternate."""
    found = dict(tensors)
    for name in tensors:
        stem, mark, module = _split(name)
        for stack, ours in stacks.items():
            if module != stack and not module.startswith(f"{stack}_"):
                continue
            modules = [f"{stem}{mark}{each}" for each in ours]
            ending = module.removeprefix(stack)
            if not alternate:
                if ending:
                    raise UnsupportedModel(f"the tensor {tensors[name].name} is not known")
                found |= _transposed(found.pop(name), modules, alternate=False)
                continue
            if ending == "_scales":
                if f"{stem}{mark}{stack}_blocks" not in tensors:
                    raise UnsupportedModel(f"the checkpoint has {name}, but no {stack}_blocks")
                del found[name]
                continue
            stored = found.pop(name)
            match ending:
                case "":
                    found |= _transposed(stored, modules)
                case "_bias":
                    found |= _biases(stored, modules)
                case "_blocks":
                    scales = tensors.get(f"{stem}{mark}{stack}_scales")
                    found |= _mxfp4(stored, scales, modules)
                case _:
                    raise UnsupportedModel(f"the tensor {stored.name} is not known")
    return found


def cut_rows(
    tensors: Mapping[str, StoredTensor],
    stacks: Mapping[str, tuple[str]],
    turned: Collection[str],
    config: ModelConfig,
) -> dict[str, StoredTensor]:
    """Replaces tensors of floats that have all experts' matrices one below the other by these.
    `stacks`, `turned`: TensorNames.rows_of_experts and rows_turned. Raises UnsupportedModel for
    tensors of other shapes."""
    found = dict(tensors)
    for name in tensors:
        stem, mark, module = _split(name)
        if module not in stacks:
            continue
        stored, number = found.pop(name), stem.rpartition(".")[2]
        layer = config.layer(min(int(number), config.num_layers - 1)) if number.isdigit() else None
        experts = None if layer is None else layer.feed_forward.experts
        count = 1 if experts is None else experts.count
        if len(stored.shape) != 2 or min(stored.shape) < 1 or stored.shape[0] % count:
            raise UnsupportedModel(
                f"tensor {stored.name} has shape {stored.shape}; rows for {count} experts are "
                "expected"
            )
        rows, columns = stored.shape[0] // count, stored.shape[1]
        ours = f"{stem}{mark}{stacks[module][0]}"
        if module in turned:
            whole = replace(stored, shape=(count, rows, columns))
            found |= _transposed(whole, [ours], alternate=False)
            continue
        for expert, data in enumerate(stored.data.reshape(count, -1)):
            own = replace(stored, shape=(rows, columns), data=data)
            found[f"{ours.replace('*', str(expert))}.weight"] = own
    return found


def _split(name: str) -> tuple[str, str, str]:
    """`layers.3.mlp.x` is `layers.3`, `.` and `mlp.x`."""
    parts = name.split(".", 2)
    if len(parts) < 3 or parts[0] != "layers":
        return "", "", name
    return f"{parts[0]}.{parts[1]}", ".", parts[2]


def _transposed(
    stored: StoredTensor, modules: list[str], *, alternate: bool = True
) -> Iterator[tuple[str, StoredTensor]]:
    size = _float_bytes(stored)
    experts, inputs, outputs = _shape(stored, 3, len(modules))
    shape = (outputs // len(modules), inputs)
    for expert, data in enumerate(stored.data.reshape(experts, -1)):
        for part, name in enumerate(modules):
            taken = slice(part, None, len(modules))
            if not alternate:
                taken = slice(part * shape[0], (part + 1) * shape[0])
            made = partial(_turned, inputs=inputs, size=size, taken=taken)
            yield (
                f"{name.replace('*', str(expert))}.weight",
                StoredTensor(stored.name, shape, stored.format, data, made=made),
            )


def _turned(data: np.ndarray, inputs: int, size: int, taken: slice) -> np.ndarray:
    """Returns the columns `taken` of one of the matrices in [inputs, outputs], as the bytes of
    [columns, inputs]."""
    columns = data.reshape(inputs, -1, size)[:, taken]
    return np.ascontiguousarray(columns.transpose(1, 0, 2)).reshape(-1)


def _biases(stored: StoredTensor, modules: list[str]) -> Iterator[tuple[str, StoredTensor]]:
    size = _float_bytes(stored)
    experts, outputs = _shape(stored, 2, len(modules))
    for expert, data in enumerate(stored.data.reshape(experts, outputs, size)):
        for part, name in enumerate(modules):
            own = np.ascontiguousarray(data[part :: len(modules)])
            yield (
                f"{name.replace('*', str(expert))}.bias",
                StoredTensor(stored.name, own.shape[:1], stored.format, own.reshape(-1)),
            )


def _mxfp4(
    blocks: StoredTensor, scales: StoredTensor | None, modules: list[str]
) -> Iterator[tuple[str, StoredTensor]]:
    experts, outputs, groups, width = _shape(blocks, 4, len(modules), rows=1)
    if blocks.format != "U8" or width != _GROUP // 2:
        raise UnsupportedModel(
            f"tensor {blocks.name} is {blocks.format} {blocks.shape}; U8 of blocks of "
            f"{_GROUP // 2} bytes is expected"
        )
    wanted = (experts, outputs, groups)
    if scales is None or scales.format != "U8" or scales.shape != wanted:
        given = "missing" if scales is None else f"{scales.format} {scales.shape}"
        raise UnsupportedModel(f"the scales of {blocks.name} are {given}; U8 {wanted} is expected")
    by_expert = scales.data.reshape(experts, outputs, groups)
    shape = (outputs // len(modules), groups * _GROUP)
    for expert, data in enumerate(blocks.data.reshape(experts, -1)):
        for part, name in enumerate(modules):
            own = by_expert[expert, part :: len(modules)]
            made = partial(_as_gguf, scales=own, outputs=outputs, part=part, parts=len(modules))
            yield (
                f"{name.replace('*', str(expert))}.weight",
                StoredTensor(blocks.name, shape, "MXFP4", data, made=made),
            )


def _as_gguf(
    data: np.ndarray, scales: np.ndarray, outputs: int, part: int, parts: int
) -> np.ndarray:
    """Returns the same numbers as GGUF's blocks: the scale, then the low bits of 16 bytes for the
    first 16 numbers, and the high bits for the others."""
    pairs = data.reshape(outputs, -1, _GROUP // 2)[part::parts]
    codes = np.stack((pairs & 15, pairs >> 4), -1).reshape(*pairs.shape[:2], _GROUP)
    found = np.empty((*pairs.shape[:2], 1 + _GROUP // 2), dtype=np.uint8)
    found[..., 0] = scales
    found[..., 1:] = codes[..., : _GROUP // 2] | codes[..., _GROUP // 2 :] << 4
    return found.reshape(-1)


def _float_bytes(stored: StoredTensor) -> int:
    size = _FLOAT_BYTES.get(stored.format)
    if size is None:
        raise UnsupportedModel(
            f"tensor {stored.name} is of type {stored.format}; {', '.join(_FLOAT_BYTES)} are served"
        )
    return size


def _shape(stored: StoredTensor, dimensions: int, parts: int, rows: int = -1) -> tuple[int, ...]:
    """Returns the shape, whose dimension `rows` is dealt out to the parts."""
    shape = stored.shape
    if len(shape) != dimensions or min(shape) < 1 or shape[rows] % parts:
        raise UnsupportedModel(
            f"tensor {stored.name} has shape {shape}; {dimensions} dimensions are expected, and "
            f"rows for {parts} matrices"
        )
    return shape
