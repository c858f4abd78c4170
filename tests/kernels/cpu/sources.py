"""Random matrices as a checkpoint stores them."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np

from penstock_kernels.cpu.matrix import PLAIN, SOURCES, MatrixKind, PackedMatrix, pack

WIDTH = {name: source.elements for name, source in SOURCES.items()}
"""Source -> its rows' lengths are a multiple of this."""

WAYS = [(source, None) for source in SOURCES] + [
    (source, kind) for source in PLAIN for kind in (MatrixKind.F32, MatrixKind.BF16, MatrixKind.S8H)
]
"""Every source in every kind that it can be packed as. None: its own."""

K_HALVES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "NVFP4": (),
}  # fmt: skip
"""Where blocks of the types that the gguf package can't quantise hold their float16 scales."""
K_BYTES = {
    "Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "IQ4_NL": 18, "IQ4_XS": 136,
    "NVFP4": 36,
}  # fmt: skip


def name_of(way: tuple[str, MatrixKind | None]) -> str:
    source, kind = way
    return source if kind is None else f"{source} as {kind.name}"


@dataclass(frozen=True)
class Source:
    """data: the bytes, uint8.  values: [outputs, inputs] float32, decoded by the gguf package."""

    format: str
    data: np.ndarray
    values: np.ndarray

    def packed(self, **options: object) -> PackedMatrix:
        return pack(self.format, self.data, self.values.shape, **options)


def random_source(format: str, outputs: int, inputs: int, seed: int = 0) -> Source:
    rng = np.random.default_rng(seed)
    if format in K_HALVES:
        data = _k_blocks(rng, format, outputs * inputs // WIDTH[format])
    else:
        plain = rng.standard_normal((outputs, inputs)).astype(np.float32)
        data = gguf.quants.quantize(plain, gguf.GGMLQuantizationType[format])
    return source_of(format, data, outputs, inputs)


def source_of(format: str, data: np.ndarray, outputs: int, inputs: int) -> Source:
    data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    kind = gguf.GGMLQuantizationType[format]
    rows = data.view({"F32": np.float32, "F16": np.float16}.get(format, np.uint8))
    values = gguf.quants.dequantize(rows, kind).astype(np.float32)
    return Source(format, data, values.reshape(outputs, inputs))


def _k_blocks(rng: np.random.Generator, format: str, count: int) -> np.ndarray:
    """Blocks of random bits, with scales of the size that a model's have."""
    blocks = rng.integers(0, 256, (count, K_BYTES[format]), dtype=np.uint8)
    for at in K_HALVES[format]:
        scales = (rng.standard_normal(count) * 1e-3).astype(np.float16)
        blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
    if format == "NVFP4":  # Of type e4m3, below 1/8; some are subnormal.
        blocks[:, :4] = rng.integers(0, 0x20, (count, 4))
    return blocks
