"""The reference's page about formats of weights: how each backend holds them, as its own code says
of the tests' files."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch

from penstock.formats.fields import Fields
from penstock.formats.gguf_types import QUANTISED_TYPES, READ_TYPES, TENSOR_TYPES
from penstock.prepare.quantised import METHODS, read_quantisation
from penstock_kernels.cpu.matrix import SOURCES, MatrixKind
from penstock_kernels.cpu.memory import Arena
from penstock_worker.weights.stored import CheckpointTensor
from tests.reference.pages import WRITTEN
from tests.shared.releases.reading import READ, RELEASES
from tests.worker.quantised_cases import CASES
from tests.worker.quantised_checkpoints import write_checkpoint
from tests.worker.quantised_writers import LIBRARIES

MODULE = "model.layers.1.mlp.down_proj"
"""The matrix of a checkpoint that is looked at."""
PLAIN = {MatrixKind.F32: "float", MatrixKind.BF16: "float"}
NO_WEIGHTS = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
"""Types that llama.cpp computes with, or counts in."""
HEAD = "| {} | cpu | triton |\n|---|---|---|\n"


def weights_page() -> str:
    """The types of GGUF files, and the methods by which checkpoints are quantised."""
    unread = [each[0] for each in TENSOR_TYPES.values() if each[0] not in READ_TYPES | NO_WEIGHTS]
    said = f". Not read: {', '.join(unread)}" if unread else "; all that llama.cpp writes"
    read = Counter(method for name in READ if (method := _method(name)))
    return (
        f"# Formats of weights\n\n{WRITTEN}\n"
        "A number is the bits of a weight that stays quantised: the file's own level, not rounded "
        "again, with scales beside it. `float`: unpacked to bfloat16 or float32; `fp8`: also "
        "multiplied with activations in FP8. `reference` unpacks everything to float32. "
        "[Models](../guides/models.md#quantised-checkpoints) has the conditions.\n\n"
        "## Types of GGUF files\n\n"
        f"Compared, value by value, with the `gguf` package's decoding{said}.\n\n"
        + HEAD.format("types")
        + "".join(
            f"| {', '.join(names)} | {' | '.join(form)} |\n"
            for form, names in _by_form((name, _of_gguf(name)) for name in QUANTISED_TYPES)
        )
        + "\n## Quantised checkpoints\n\n"
        "Compared with a model of the same weights in float32: equal bits on `reference`, close "
        "on `cpu`, and the values read back on `triton`. `mxfp4`, gpt-oss's experts, has 4 bits "
        "on both.\n\n"
        + HEAD.format("`quant_method`, and what of it the tests write")
        + "".join(
            f"| {_by_method(names)} | {' | '.join(form)} |\n"
            for form, names in _by_form(_of_checkpoints())
        )
        + "\nFiles of a small random Llama by the formats' own libraries were read, too: "
        + ", ".join(LIBRARIES)
        + f". Settings of {sum(read.values())} releases are read.\n"
    )


def _by_form(
    held: Iterable[tuple[str, tuple[str, str]]],
) -> Iterable[tuple[tuple[str, str], list[str]]]:
    """Each way in which something is held by the backends, and all names that are."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, form in held:
        found.setdefault(form, []).append(name)
    return found.items()


def _by_method(names: list[str]) -> str:
    variants: dict[str, list[str]] = {}
    for name in names:
        variant = name.replace(", of Model Optimizer", "").replace(" of Model Optimizer", "")
        variants.setdefault(CASES[name].settings["quant_method"], []).append(variant)
    return "<br>".join(f"`{method}`: {'; '.join(each)}" for method, each in variants.items())


def _bits(kind: MatrixKind) -> str:
    return PLAIN.get(kind) or kind.name[1]


def _of_gguf(name: str) -> tuple[str, str]:
    from penstock_worker.quantisation.checkpoints.nvfp4 import NVFP4Blocks
    from penstock_worker.quantisation.registry import FORMATS

    form = FORMATS[name]
    kind = form.grouped.kind if form.grouped is not None else SOURCES[name].kind
    if name == NVFP4Blocks.gguf[0]:
        return _bits(kind), "4"  # read as a checkpoint's, with the factor of its matrix
    return _bits(kind), "float" if form.kept is None else str(form.kept.layout.bits)


def _of_checkpoints() -> Iterable[tuple[str, tuple[str, str]]]:
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = write_checkpoint(Path(folder) / "model", case)
            prepared, shape = checkpoint.prepared, checkpoint.meant[f"{MODULE}.weight"].shape
            from penstock_worker.weights.opening import open_weights

            weights = open_weights(prepared.weights, prepared.decoder, torch.float32)
            stored = weights.stored(f"{MODULE.removeprefix('model.')}.weight", tuple(shape))
            if not isinstance(stored, CheckpointTensor):
                raise TypeError(f"{name}: {MODULE} isn't quantised")
            yield name, _of_matrix(stored)


def _of_matrix(stored: CheckpointTensor) -> tuple[str, str]:
    from penstock_worker.forward.cpu.packing import CheckpointPacking
    from penstock_worker.weights.quantised import fp8_kind, kept_as

    packed = CheckpointPacking(1, Arena()).pack(stored.quantised)
    columns = range(stored.shape[1])
    kept = (
        "fp8"
        if fp8_kind(stored, columns, torch.device("cpu"))
        else kept_as(stored, columns) or "float"
    )
    bits = "8" if kept.startswith("int8") else "4" if kept[0] in "ie" else kept
    return _bits(MatrixKind(packed.struct.kind)), bits


def _method(name: str) -> str:
    release = RELEASES[name]
    beside = Fields(release.get("quant") or {}, name)
    try:
        found = read_quantisation(Fields(release["config"], name), beside)
    except Exception:
        return ""
    return found.method if found is not None and found.method in METHODS else ""
