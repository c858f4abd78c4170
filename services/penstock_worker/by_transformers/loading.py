"""A model of transformers' with the weights of a checkpoint, from safetensors files only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import UnsupportedModel
from penstock.formats.mapping import release
from penstock.formats.safetensors_file import SafetensorsFile, SafetensorsTensor
from penstock.model.config import TransformersConfig
from penstock.model.prepared_model import WeightFiles
from penstock_kernels.reference.linear import ALIGNMENT
from penstock_worker.by_transformers.model_class import (
    MOST_TOLD,
    check_positions,
    library_config,
    model_class,
)
from penstock_worker.by_transformers.paged import register

MOST_NAMES = 8
"""Names that an error lists."""
SPARE_BYTES = 1 << 30
"""Bytes of buffers, such as tables of positions, in addition to the weights."""

HEADS = ("lm_head.", "score.weight")
"""Beginnings of names that a model without its head has no use for."""


def load_model(
    described: TransformersConfig,
    files: WeightFiles,
    dtype: torch.dtype,
    positions: int,
    *,
    headless: bool = False,
) -> Any:
    """The model in evaluation mode, for sequences of so many positions. Its sizes are compared with
    the files' before memory is taken.

    Raises UnsupportedModel for tensors that are missing, left over or of another shape, and for a
    model that can't be served.
    """
    kind, config = model_class(described, headless=headless), library_config(described)
    register()
    tensors = {
        tensor.name: tensor
        for path in files.files
        for tensor in SafetensorsFile(path).tensors.values()
    }
    if described.num_layers > len(tensors):  # Even to describe them would take long.
        raise UnsupportedModel(
            f"config.json describes {described.num_layers} layers of {described.architecture}, and "
            f"the weights hold {len(tensors)} tensors"
        )
    _check_sizes(_empty(kind, config, dtype, described), tensors.values(), described)
    values = {name: FileTensor(tensor) for name, tensor in tensors.items()}
    model, report = _filled(kind, config, dtype, values, described)
    _check_report(report, HEADS if headless else ())
    check_positions(model, positions)
    _align(model)
    _plain_products(model)
    return model.eval().requires_grad_(False)


def _empty(kind: Any, config: Any, dtype: torch.dtype, described: TransformersConfig) -> Any:
    """The model without memory for its weights."""
    try:
        with torch.device("meta"):
            return kind._from_config(config, dtype=dtype)
    except Exception as error:  # whatever a stranger's settings set off
        raise _failed(described, error) from error


def _filled(
    kind: Any,
    config: Any,
    dtype: torch.dtype,
    values: dict[str, FileTensor],
    described: TransformersConfig,
) -> tuple[Any, dict[str, Any]]:
    try:
        # No path, so that nothing is looked for in the folder or on the hub.
        found: tuple[Any, dict[str, Any]] = kind.from_pretrained(
            None,
            config=config,
            state_dict=values,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # They are reported, and refused below.
            local_files_only=True,
        )
    except Exception as error:
        raise _failed(described, error) from error
    return found


def _failed(described: TransformersConfig, error: Exception) -> UnsupportedModel:
    return UnsupportedModel(
        f"transformers can't create {described.architecture}: {type(error).__name__}: "
        f"{str(error)[:MOST_TOLD]}"
    )


def _check_sizes(
    model: Any, tensors: Iterable[SafetensorsTensor], described: TransformersConfig
) -> None:
    """Raises UnsupportedModel for a model that is larger than the files."""
    held = sum(int(np.prod(tensor.shape, dtype=object)) for tensor in tensors)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    claimed = sum(
        parameter.numel() for name, parameter in model.named_parameters() if name not in tied
    )
    if claimed > held:
        raise UnsupportedModel(
            f"config.json describes {claimed} values of {described.architecture}, and the weights "
            f"hold {held}"
        )
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if buffers > SPARE_BYTES:
        raise UnsupportedModel(
            f"the tables of {described.architecture} would take {buffers} bytes besides its "
            f"weights; {SPARE_BYTES} are allowed"
        )


_TORCH_TYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Torch's dtypes, by the file format's names."""


class FileTensor:
    """A tensor in its file, as transformers' loader takes it: whatever is read of it is a copy, in
    torch's own memory, which a model's code may write to."""

    def __init__(self, tensor: SafetensorsTensor) -> None:
        self._tensor = tensor
        kind = _TORCH_TYPES.get(tensor.dtype)
        if kind is None:
            raise UnsupportedModel(
                f"tensor {tensor.name} is stored as {tensor.dtype}; {', '.join(_TORCH_TYPES)} can "
                "be read for transformers' code"
            )
        self._type: torch.dtype = kind

    def __getitem__(self, part: Any) -> Tensor:
        values = torch.empty(self._tensor.shape, dtype=self._type)
        if values.numel():
            values.view(-1).view(torch.uint8).numpy()[:] = self._tensor.data
            release(self._tensor.data)
        return values[part]

    def get_dtype(self) -> str:
        """The format's name."""
        return self._tensor.dtype

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)


def _check_report(report: dict[str, Any], spare: tuple[str, ...]) -> None:
    """Raises UnsupportedModel for what transformers tells of tensors that don't fit."""
    extra = [name for name in report["unexpected_keys"] if not name.startswith(spare or ("\0",))]
    for names, what in (
        (report["missing_keys"], "lacks {} tensors of the model"),
        (report["mismatched_keys"], "has {} tensors of other shapes than the model's"),
        (extra, "has {} tensors that the model doesn't use"),
    ):
        if names:
            listed = sorted(str(name) for name in names)
            shown = ", ".join(listed[:MOST_NAMES]) + (", …" if len(listed) > MOST_NAMES else "")
            raise UnsupportedModel(f"the checkpoint {what.format(len(listed))}: {shown}")
    if report.get("error_msgs"):
        raise UnsupportedModel(f"the checkpoint: {str(report['error_msgs'])[:MOST_TOLD]}")


def _align(model: Any) -> None:
    """Gives tensors that begin within others torch's own alignment, as the kernels want it."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.data_ptr() % ALIGNMENT or not tensor.is_contiguous():
            tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)


def _plain_products(model: Any) -> None:
    """Makes GPT-2's transposed products plain ones, whose weights lie as the kernels want them."""
    from transformers.pytorch_utils import Conv1D

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                plain = nn.Linear(child.nx, child.nf, device="meta")
                plain.weight = nn.Parameter(child.weight.data.t().contiguous(), requires_grad=False)
                plain.bias = child.bias
                setattr(parent, name, plain)
