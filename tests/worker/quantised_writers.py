"""Writers of quantised checkpoints, each after its format's definition and as plain as that.

A writer takes a matrix, [outputs, inputs] float32, and returns the tensors that stand in its place,
by what follows the module's name, and the float32 matrix that they mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

Written = tuple[dict[str, Tensor], Tensor]
Writer = Callable[[Tensor], Written]


@dataclass(frozen=True)
class Levels:
    """What every format of whole numbers stores. levels: [outputs, inputs]; zeros, scales:
    [outputs, groups]; group_of: [inputs]."""

    levels: np.ndarray
    zeros: np.ndarray
    scales: Tensor
    group_of: np.ndarray

    @property
    def meant(self) -> Tensor:
        scales = self.scales.double().numpy()[:, self.group_of]
        centred = self.levels.astype(np.int64) - self.zeros[:, self.group_of]
        return torch.from_numpy(scales * centred).float()


def quantise(
    weight: Tensor,
    bits: int,
    group: int | None,
    *,
    symmetric: bool,
    dtype: torch.dtype,
    spread: bool = False,
) -> Levels:
    """Rounds to the nearest level. spread: the inputs of a group lie anywhere (act-order)."""
    values = weight.double().numpy()
    outputs, inputs = values.shape
    group_of = np.arange(inputs) // (group or inputs)
    if spread:
        group_of = np.random.default_rng(7).permutation(group_of)
    most, groups = 2**bits - 1, int(group_of.max()) + 1
    levels, zeros = np.zeros((outputs, inputs), int), np.zeros((outputs, groups), int)
    scales = torch.zeros(outputs, groups, dtype=dtype)
    for each in range(groups):
        part = values[:, group_of == each]
        if symmetric:
            scales[:, each] = torch.from_numpy(np.abs(part).max(1) / (most // 2)).to(dtype)
            zeros[:, each] = 2 ** (bits - 1)
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scales[:, each] = torch.from_numpy((high - low) / most).to(dtype)
            step = scales[:, each].double().numpy()
            zeros[:, each] = np.clip(np.rint(-low / step), 1, most)
        step = scales[:, each].double().numpy()[:, None]
        found = np.rint(part / step) + zeros[:, each, None]
        levels[:, group_of == each] = np.clip(found, 0, most)
    return Levels(levels, zeros, scales, group_of)


LIBRARIES = {
    "auto-round 0.16.1": "as `auto-round`: 2, 3, 4, 5 and 8 bits, asymmetric too, as AWQ, bits by "
    "module, FP8 per tensor, channel and block, MXFP4, MXFP8, NVFP4; as `gptq`, `awq`, `fp8`, "
    "`compressed-tensors`",
    "llmcompressor 0.14.0.1": "with compressed-tensors 0.20.0: W2A16, W3A16, W4A16, W4A16_ASYM, "
    "W5A16, W8A16, W4A8, W4AFP8, W6A8, W8A8, FP8, FP8_DYNAMIC, FP8_BLOCK, MXFP4, MXFP8, NVFP4; "
    "GPTQ with actorder `weight` and `static`",
    "nvidia-modelopt 0.47.0": "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP4, MXFP8, NVFP4, "
    "W4A8_NVFP4_FP8, W4A8_MXFP4_FP8, W4A16_AWQ, W4A8_AWQ, W8A16, W8A8_SQ_PER_CHANNEL",
    "bitsandbytes 0.50.2": "LLM.int8, FP4, NF4, its scales quantised too, and as bfloat16",
    "hqq 0.2.8.post1": "2, 4 and 8 bits",
}
"""Libraries whose own files of a small random Llama were read once, with the weights that the
library decodes, up to the rounding of its dtype. Writers make tensors of the same names, types and
shapes. (AWQ was decoded by AutoAWQ 0.2.9; Model Optimizer's integers and FP8 are what it quantises
to, but for a weight in 30,000 that lies between two numbers.)"""


def into_words(levels: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Packs [lines, n] into int32 [lines, words], one number at a time. order: which of a word's
    numbers lies in its lowest bits, in the next ones, and so on."""
    if 32 % bits:
        return as_stream(levels, bits)
    per = 32 // bits
    words = np.zeros((levels.shape[0], -(-levels.shape[1] // per)), dtype=np.uint32)
    for at in range(levels.shape[1]):
        word, place = divmod(at, per)
        place = place if order is None else order.index(place)
        words[:, word] |= levels[:, at].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(words.view(np.int32))


def as_stream(levels: np.ndarray, bits: int) -> Tensor:
    """Packs as into_words does; a number may lie in two words."""
    size = -(-levels.shape[1] * bits // 32) * 4
    lines = [
        sum(int(level) << bits * at for at, level in enumerate(line)).to_bytes(size, "little")
        for line in levels
    ]
    return torch.from_numpy(
        np.frombuffer(bytearray(b"".join(lines)), np.int32).reshape(len(levels), -1)
    )


def awq(group: int | None) -> Writer:
    def write(weight: Tensor) -> Written:
        found = quantise(weight, 4, group, symmetric=False, dtype=torch.float16)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        tensors = {
            "qweight": into_words(found.levels.T, 4, order),
            "qzeros": into_words(found.zeros.T, 4, order),
            "scales": found.scales.T.contiguous(),
        }
        return tensors, found.meant

    return write


def gptq(bits: int, group: int | None, *, first: bool, spread: bool = False) -> Writer:
    def write(weight: Tensor) -> Written:
        dtype = torch.float16
        found = quantise(weight, bits, group, symmetric=False, dtype=dtype, spread=spread)
        if first:
            found.zeros[1, 0] = 0  # Borrows from its neighbour.
        stored = (found.zeros.T - first) % 2**bits if 32 % bits else found.zeros.T
        zeros = into_words(stored, bits).numpy().view(np.uint32)
        if first and not 32 % bits:
            zeros = zeros - np.uint32(sum(1 << at for at in range(0, 32, bits)))
        tensors = {
            "qweight": into_words(found.levels, bits).T.contiguous(),
            "qzeros": torch.from_numpy(zeros.view(np.int32)),
            "scales": found.scales.T.contiguous(),
            "g_idx": torch.from_numpy(found.group_of).int(),
            "bias": torch.zeros(weight.shape[0], dtype=torch.float16),
        }
        return tensors, found.meant

    return write


def auto_round(bits: int, group: int) -> Writer:
    """As AutoRound quantises symmetrically: a scale is negative where the group's largest weight
    is positive, so that all levels are used. Without g_idx and biases."""

    def write(weight: Tensor) -> Written:
        found = quantise(weight, bits, group, symmetric=True, dtype=torch.float16)
        found.scales[:, ::2] *= -1
        turned = (2**bits - found.levels).clip(0, 2**bits - 1)
        found = replace(found, levels=np.where(found.group_of % 2 == 0, turned, found.levels))
        zeros = into_words(found.zeros.T - 1, bits)
        qweight = into_words(found.levels, bits).T.contiguous()
        scales = found.scales.T.contiguous()
        return {"qweight": qweight, "qzeros": zeros, "scales": scales}, found.meant

    return write


def packed(
    bits: int, group: int | None, dtype: torch.dtype, *, symmetric: bool, spread: bool = False
) -> Writer:
    def write(weight: Tensor) -> Written:
        found = quantise(weight, bits, group, symmetric=symmetric, dtype=dtype, spread=spread)
        tensors = {
            "weight_packed": into_words(found.levels, bits),
            "weight_scale": found.scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = into_words(found.zeros.T, bits).T.contiguous()
        if spread:
            tensors["weight_g_idx"] = torch.from_numpy(found.group_of).int()
        return tensors, found.meant

    return write


def int8(dtype: torch.dtype, *, symmetric: bool = True, per_matrix: bool = False) -> Writer:
    def write(weight: Tensor) -> Written:
        shaped = weight.reshape(1, -1) if per_matrix else weight
        found = quantise(shaped, 8, None, symmetric=symmetric, dtype=dtype)
        signed = (found.levels - 128).reshape(weight.shape).astype(np.int8)
        tensors = {"weight": torch.from_numpy(signed), "weight_scale": found.scales}
        if per_matrix:
            tensors["weight_scale"] = found.scales.reshape(1)
            tensors["input_scale"] = torch.ones(1)
        if not symmetric:
            tensors["weight_zero_point"] = torch.from_numpy((found.zeros - 128).astype(np.int8))
        return tensors, found.meant.reshape(weight.shape)

    return write


def int4_in_bytes(group: int | None) -> Writer:
    def write(weight: Tensor) -> Written:
        found = quantise(weight, 4, group, symmetric=True, dtype=torch.bfloat16)
        stored = torch.from_numpy((found.levels - 8).astype(np.int8))
        return {"weight": stored, "weight_scale": found.scales}, found.meant

    return write


def llm_int8(weight: Tensor) -> Written:
    """bitsandbytes stores each output's largest magnitude, of which a level is the 127th part."""
    largest = weight.abs().amax(1)
    stored = (weight * 127 / largest[:, None]).round().to(torch.int8)
    tensors = {"weight": stored, "SCB": largest, "weight_format": torch.tensor(0).to(torch.uint8)}
    return tensors, stored * (largest * (1 / 127))[:, None]


def hqq(bits: int, group: int) -> Writer:
    """Zero points aren't whole. Rows of groups are packed apart from each other."""

    def write(weight: Tensor) -> Written:
        rows = weight.reshape(-1, group)
        low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        scales = ((high - low) / (2**bits - 1)).half()
        zeros = (-low / scales.float()).half()
        levels = (rows / scales.float() + zeros.float()).round().clamp(0, 2**bits - 1)
        parts = levels.to(torch.uint8).chunk(8 // bits)
        packed = torch.zeros_like(parts[0])
        for part in parts:
            packed = packed << bits % 8 | part
        meant = ((levels - zeros.float()) * scales.float()).reshape(weight.shape)
        tensors = {"W_q": packed, "scale": scales, "zero": zeros}
        tensors |= {"shape": torch.tensor(weight.shape), "axis": torch.tensor(1).int()}
        return tensors | {"quant_scale": torch.tensor(0).to(torch.uint8)}, meant

    return write


def ternary(*, divides: bool) -> Writer:
    """Writes weights as transformers saves BitNet's. divides: by the scale, as BitLinear does."""

    def write(weight: Tensor) -> Written:
        mean = weight.abs().mean().clamp(min=1e-5)
        rounded = (weight / mean).round().clamp(-1, 1)
        scale = (1 / mean if divides else mean).bfloat16().reshape(1)
        first, *others = (rounded + 1).to(torch.uint8).chunk(4)
        for place, quarter in enumerate(others, 1):
            first = first | quarter << 2 * place
        factor = 1 / scale.float() if divides else scale.float()
        return {"weight": first, "weight_scale": scale}, rounded * factor

    return write


def fp8(
    block: tuple[int, int] | None,
    dtype: torch.dtype = torch.float32,
    *,
    name: str,
    power: bool = False,
    apart: bool = False,
    exponents: bool = False,
) -> Writer:
    """block: outputs and inputs that share a scale; None: all. power: scales are powers of two.
    apart: they are stored as [rows, 1, columns, 1]. exponents: as bytes, their exponents plus
    127."""

    def write(weight: Tensor) -> Written:
        outputs, inputs = weight.shape
        rows, columns = (
            min(*pair) for pair in zip(block or weight.shape, weight.shape, strict=True)
        )
        shape = (-(-outputs // rows), -(-inputs // columns))
        scales, stored = torch.zeros(shape, dtype=dtype), torch.zeros(weight.shape)
        meant = torch.zeros(weight.shape)
        for row in range(shape[0]):
            for column in range(shape[1]):
                here = (
                    slice(row * rows, (row + 1) * rows),
                    slice(column * columns, (column + 1) * columns),
                )
                scale = weight[here].abs().max() / 448
                if power:
                    scale = 2.0 ** scale.log2().ceil()
                scales[row, column] = scale
                scale = scales[row, column].float()
                stored[here] = (weight[here] / scale).clamp(-448, 448)
                meant[here] = stored[here].to(torch.float8_e4m3fn).float() * scale
        scales = scales[:, None, :, None] if apart else scales
        scales = (scales.log2() + 127).to(torch.uint8) if exponents else scales
        tensors = {"weight": stored.to(torch.float8_e4m3fn), name: scales}
        if block is None:
            tensors |= {name: scales.reshape(()), "input_scale": torch.ones(())}
        return tensors, meant

    return write


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def mxfp4_of_modelopt(weight: Tensor) -> Written:
    tensors, meant = mxfp4(weight)
    return {"weight": tensors["weight_packed"], "weight_scale": tensors["weight_scale"]}, meant


def mxfp4(weight: Tensor) -> Written:
    outputs, inputs = weight.shape
    blocks = weight.reshape(outputs, inputs // 32, 32)
    exponents = (blocks.abs().amax(-1, keepdim=True) / 6).log2().ceil()
    table = torch.tensor([*E2M1, *(-each for each in E2M1)])
    codes = (blocks[..., None] / 2.0 ** exponents[..., None] - table).abs().argmin(-1)
    meant = (table[codes] * 2.0**exponents).reshape(weight.shape)
    codes = codes.reshape(outputs, inputs // 2, 2).to(torch.uint8)
    tensors = {
        "weight_packed": codes[..., 0] | codes[..., 1] << 4,
        "weight_scale": (exponents[..., 0] + 127).to(torch.uint8),
    }
    return tensors, meant


def nvfp4(*, modelopt: bool, group: int = 16) -> Writer:
    """Scales e4m3 of a group of neighbours, and one float32 for all, which compressed-tensors
    divides by and Model Optimizer multiplies by."""

    def write(weight: Tensor) -> Written:
        outputs, inputs = weight.shape
        blocks = weight.reshape(outputs, inputs // group, group)
        common = weight.abs().max() / (6 * 448)
        if not modelopt:
            common = 1 / (1 / common)
        scales = (blocks.abs().amax(-1) / 6 / common).clamp(2**-6, 448).to(torch.float8_e4m3fn)
        steps = scales.float() * common if modelopt else scales.float() / (1 / common)
        table = torch.tensor([*E2M1, *(-each for each in E2M1)])
        codes = (blocks[..., None] / steps[..., None, None] - table).abs().argmin(-1)
        meant = (table[codes] * steps[..., None]).reshape(weight.shape)
        codes = codes.reshape(outputs, inputs // 2, 2).to(torch.uint8)
        packed = codes[..., 0] | codes[..., 1] << 4
        if modelopt:
            own = {"weight": packed, "weight_scale_2": common.reshape(())}
            return own | {"weight_scale": scales, "input_scale": torch.ones(())}, meant
        own = {"weight_packed": packed, "weight_global_scale": (1 / common).reshape(1)}
        return own | {"weight_scale": scales, "input_global_scale": torch.ones(1)}, meant

    return write


def int4_of_modelopt(*, scaled: bool) -> Writer:
    """Two outputs in a byte, in two's complement. scaled: inputs have factors, by whose inverse the
    weights were multiplied before; those of square matrices don't, as where a norm before them took
    them."""

    def write(weight: Tensor) -> Written:
        apart = scaled and weight.shape[0] != weight.shape[1]
        factors = torch.linspace(0.5, 2, weight.shape[1]).bfloat16().float()
        found = quantise(
            weight / factors if apart else weight, 4, 32, symmetric=True, dtype=torch.float32
        )
        codes = torch.from_numpy((found.levels - 8) & 15).to(torch.uint8)
        tensors = {"weight": codes[0::2] | codes[1::2] << 4, "weight_scale": found.scales}
        if not apart:
            return tensors, found.meant
        tensors |= {"weight_scale_2": torch.ones(()), "input_scale": torch.ones(())}
        return tensors | {"pre_quant_scale": factors.bfloat16()}, found.meant * factors

    return write


def mixed(weight: Tensor) -> Written:
    """FP8 or NVFP4, as Model Optimizer mixes them: square matrices are FP8."""
    square = weight.shape[0] == weight.shape[1]
    return (fp8(None, name="weight_scale") if square else nvfp4(modelopt=True))(weight)


def nf4(double: bool, *, kind: str = "nf4", stored_as: torch.dtype = torch.uint8) -> Writer:
    """The code's numbers are quantiles of a normal distribution; any sixteen would do here."""
    levels = torch.linspace(-1, 1, 16).sin() / torch.tensor(1.0).sin()

    def write(weight: Tensor) -> Written:
        blocks = weight.reshape(-1, 64)
        scales = blocks.abs().amax(-1)
        tensors = {"weight.quant_map": levels.clone(), "weight.absmax": scales}
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "float32"}
        state["shape"] = list(weight.shape)
        if double:
            offset, table = float(scales.mean()), torch.linspace(-1, 1, 256)
            nested = torch.stack([part.abs().max() for part in (scales - offset).split(256)])
            per = nested.repeat_interleave(256)[: len(scales)]
            indices = ((scales - offset)[:, None] / per[:, None] - table).abs().argmin(-1)
            scales = table[indices] * per + torch.tensor(offset)
            tensors["weight.absmax"] = indices.to(torch.uint8)
            tensors |= {"weight.nested_absmax": nested, "weight.nested_quant_map": table}
            state |= {"nested_blocksize": 256, "nested_offset": offset, "nested_dtype": "float32"}
        codes = (blocks[..., None] / scales[:, None, None] - levels).abs().argmin(-1)
        meant = (levels[codes] * scales[:, None]).reshape(weight.shape)
        pairs = codes.reshape(-1, 2).to(torch.uint8)
        both = (pairs[:, :1] << 4) | pairs[:, 1:]
        tensors["weight"] = both.reshape(-1).view(stored_as)[:, None]
        text = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
        return tensors | {f"weight.quant_state.bitsandbytes__{kind}": text}, meant

    return write
