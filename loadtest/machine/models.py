"""The models: a real one from its release, and others made for the measurement, once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf

from loadtest.peers.random_gguf import SHAPES, write
from loadtest.peers.servers import installed, int4_folder, peers_dir
from loadtest.report import ROOT, SetupError, say

REAL = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
CONVERTER = ROOT / "loadtest" / "peers" / "to_openvino.py"


@dataclass(frozen=True)
class Model:
    """title: on the page.  make: writes the file; a given argument is the real model's."""

    title: str
    file: str
    make: Callable[[Path, Path], None] | None = None


def _random(shape: str) -> Callable[[Path, Path], None]:
    return lambda path, real: write(path, SHAPES[shape], real, "Q4_K_M")


def requantise(path: Path, source: Path) -> None:
    """The file's matrices in Q8_0, from what they are dequantised to. Complete, or absent."""
    reader = gguf.GGUFReader(source)
    partial = path.with_name(path.name + ".partial")
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(partial, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind, inner = field.types[0], field.types[-1]
        many = kind is gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, field.contents(), kind, sub_type=inner if many else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    target = gguf.GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, target), raw_dtype=target)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


MODELS = {
    "coder-q4": Model("Qwen2.5-Coder 0.5B, Q4_K_M", REAL),
    "coder-q8": Model(
        "Qwen2.5-Coder 0.5B, Q8_0 (requantised from Q4_K_M)",
        "qwen2.5-coder-0.5b-instruct-q8_0.gguf",
        requantise,
    ),
    "dense-1.7b": Model("dense 1.7 B, Q4_K_M", "random-dense-Q4_K_M.gguf", _random("dense")),
    "dense-4b": Model("dense 4 B, Q4_K_M", "random-qwen3-4b-Q4_K_M.gguf", _random("qwen3-4b")),
    "moe-3b": Model(
        "mixture of 3.1 B, 0.5 B active, Q4_K_M", "random-moe-3b-Q4_K_M.gguf", _random("moe-3b")
    ),
}
"""dense-1.7b, dense-4b: Qwen3-1.7B's and Qwen3-4B's shapes. All but the first two have random
weights."""


def file_of(model: Model) -> Path:
    """The model's file, made if it isn't there. Raises SetupError without the real one."""
    if model.make is None:
        return _real()
    path = peers_dir() / "models" / model.file
    if not path.is_file():
        say(f"making {path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        model.make(path, _real())
    return path


def convert(path: Path) -> None:
    """OpenVINO's own format of a model, unless it is there. Raises SetupError."""
    folder = int4_folder(path)
    if not folder.is_dir():
        say(f"converting {path.name} for OpenVINO, which takes minutes")
        python = installed("openvino", "python")
        done = subprocess.run([python, CONVERTER, path, folder], check=False)
        if done.returncode:
            raise SetupError(f"{path.name} can't be converted for OpenVINO; see above")


def _real() -> Path:
    """Finds the real model in the folder that PENSTOCK_RELEASES names, or among the made ones."""
    folders = [Path(os.environ.get("PENSTOCK_RELEASES", ".")), peers_dir() / "models"]
    for folder in folders:
        if (folder / REAL).is_file():
            return (folder / REAL).resolve()
    raise SetupError(
        f"{REAL} is missing: put that file of Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF into "
        f"{folders[-1]}, or name its folder in PENSTOCK_RELEASES"
    )
