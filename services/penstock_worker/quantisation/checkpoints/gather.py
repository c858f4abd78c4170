"""Finds the quantised modules of a checkpoint: several tensors become one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import UnsupportedModel
from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import QuantisedCheckpoint
from penstock_worker.quantisation.checkpoints import CHECKPOINT_FORMATS
from penstock_worker.quantisation.checkpoints.matrix import CheckpointMatrix, ScaledInputs
from penstock_worker.quantisation.checkpoints.module import FLOATS, Module, float32

_PACKED_PARTS = ("qweight", "weight_packed")
_FACTORS = "pre_quant_scale"
_OF_ACTIVATIONS = ("q_scale", "prob_scale", "output_scale")
"""Scales of what nothing here is quantised by; but a KV cache may be by those of outputs."""
_STORED_OUTPUTS = (".k_proj.output_scale", ".v_proj.output_scale")


@dataclass
class Gathered:
    """A checkpoint's tensors, by names as the checkpoint would have them unquantised."""

    plain: dict[str, SafetensorsTensor] = field(default_factory=dict)
    matrices: dict[str, CheckpointMatrix] = field(default_factory=dict)
    spare: set[str] = field(default_factory=set)
    """Names in `plain` of biases that are all zero. Some quantisers add one to each module, so the
    model may have no use for it."""


def gathered(tensors: Mapping[str, SafetensorsTensor], quantised: QuantisedCheckpoint) -> Gathered:
    """`tensors`: by their names in the checkpoint. Raises UnsupportedModel for a module whose
    tensors don't fit together, or that is quantised otherwise than the configuration says."""
    found = Gathered()
    for name, parts in _modules(tensors).items():
        module = Module(name, parts)
        matrix = _matrix(module, quantised)
        for part, tensor in parts.items():
            unused = part in _OF_ACTIVATIONS and not tensor.name.endswith(_STORED_OUTPUTS)
            if part in module.taken or unused:
                continue
            found.plain[tensor.name] = tensor
            if matrix is not None and part == "bias" and not tensor.data.any():
                found.spare.add(tensor.name)
        if matrix is not None:
            found.matrices[f"{name}.weight"] = matrix
    return found


def _modules(tensors: Mapping[str, SafetensorsTensor]) -> dict[str, dict[str, SafetensorsTensor]]:
    modules: dict[str, dict[str, SafetensorsTensor]] = {}
    for name, tensor in tensors.items():
        head, found, tail = name.partition(".weight.")
        if found:  # bitsandbytes: NAME.weight.absmax
            module, part = head, f"weight.{tail}"
        else:
            module, _, part = name.rpartition(".")
        modules.setdefault(module, {})[part] = tensor
    return modules


def _matrix(module: Module, quantised: QuantisedCheckpoint) -> CheckpointMatrix | None:
    """Returns the module's matrix; None for a module that isn't quantised."""
    applied = False
    for scheme in quantised.schemes:
        form = CHECKPOINT_FORMATS[scheme.storage]
        if form.applies(module):
            _check_listed(module, quantised)
            applied = True
            matrix = form.read(module, scheme)
            if matrix is not None:
                return _scaled(module, matrix)
    if applied:
        raise module.wrong(
            "has tensors of other shapes than its quantization_config says: "
            + ", ".join(f"{part} {each.dtype} {each.shape}" for part, each in module.parts.items())
            + f"; known are {', '.join(map(_described, quantised.schemes))}"
        )
    _check_plain(module, quantised)
    return None


def _scaled(module: Module, matrix: CheckpointMatrix) -> CheckpointMatrix:
    """Returns the matrix with the factors of its inputs, if it has any."""
    if _FACTORS not in module.parts:
        return matrix
    factors = float32(module.take(_FACTORS, FLOATS, (matrix.inputs,)))
    return matrix if (factors == 1).all() else ScaledInputs.of(matrix, factors)


def _described(scheme: object) -> str:
    return repr(scheme).removeprefix("WeightScheme")


def _check_listed(module: Module, quantised: QuantisedCheckpoint) -> None:
    if module.name in quantised.unquantised:
        raise module.wrong("is listed by the configuration as one that isn't quantised")


def _check_plain(module: Module, quantised: QuantisedCheckpoint) -> None:
    """Raises UnsupportedModel for numbers that mean nothing without scales."""
    weight = module.parts.get("weight")
    odd = [module.parts[part] for part in _PACKED_PARTS if part in module.parts]
    if weight is not None and weight.dtype not in (*FLOATS, "F64"):
        odd.append(weight)
    for tensor in odd:
        raise UnsupportedModel(
            f"tensor {tensor.name} is of type {tensor.dtype}, which a checkpoint of "
            f"{quantised.name} doesn't have"
        )
