"""Writers of quantised checkpoints, each after its format's definition and as plain as that.

A writer takes a matrix, [outputs, inputs] float32, and returns the tensors that stand in its place,
by what follows the module's name, and the float32 matrix that they mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from penstock.model_config import ModelConfig, PreparedModel, WeightFiles
from penstock.prepare import load_manifest, prepare
from tests.shared.tiny_models import LLAMA_CONFIG, write_hub_folder
from tests.worker.checkpoints import tiny_tensors

Written = tuple[dict[str, Tensor], Tensor]
Writer = Callable[[Tensor], Written]

SIZES = {
    "vocab_size": 700,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


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


def into_words(levels: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Packs [lines, n] into int32 [lines, words], one number at a time. order: which of a word's
    numbers lies in its lowest bits, in the next ones, and so on."""
    per = 32 // bits
    words = np.zeros((levels.shape[0], -(-levels.shape[1] // per)), dtype=np.uint32)
    for at in range(levels.shape[1]):
        word, place = divmod(at, per)
        place = place if order is None else order.index(place)
        words[:, word] |= levels[:, at].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(words.view(np.int32))


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
        zeros = into_words(found.zeros.T, bits).numpy().view(np.uint32)
        if first:
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


def fp8(
    block: tuple[int, int] | None,
    dtype: torch.dtype = torch.float32,
    *,
    name: str,
    power: bool = False,
) -> Writer:
    """block: outputs and inputs that share a scale; None: all. power: scales are powers of two."""

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
        tensors = {"weight": stored.to(torch.float8_e4m3fn), name: scales}
        if block is None:
            tensors |= {name: scales.reshape(()), "input_scale": torch.ones(())}
        return tensors, meant

    return write


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


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


def nf4(double: bool) -> Writer:
    """The code's numbers are quantiles of a normal distribution; any sixteen would do here."""
    levels = torch.linspace(-1, 1, 16).sin() / torch.tensor(1.0).sin()

    def write(weight: Tensor) -> Written:
        blocks = weight.reshape(-1, 64)
        scales = blocks.abs().amax(-1)
        tensors = {"weight.quant_map": levels.clone(), "weight.absmax": scales}
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32"}
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
        tensors["weight"] = (pairs[:, :1] << 4) | pairs[:, 1:]
        text = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
        return tensors | {"weight.quant_state.bitsandbytes__nf4": text}, meant

    return write


@dataclass(frozen=True)
class Case:
    """settings: quantization_config.  plain: the dtype of everything else."""

    settings: dict[str, Any]
    writer: Writer
    plain: torch.dtype = torch.float16
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """folder: the hub's files.  prepared: what Penstock makes of them.  twin: the same model as
    plain float32.  meant: the weights of quantised modules, by the hub's names."""

    folder: Path
    twin: WeightFiles
    meant: dict[str, Tensor]

    @property
    def prepared(self) -> PreparedModel:
        return load_manifest(prepare(str(self.folder), cache_dir=str(self.folder / "cache")))

    @property
    def config(self) -> ModelConfig:
        return self.prepared.decoder

    def change(self, change: Callable[[dict[str, Tensor]], None]) -> None:
        """Rewrites the tensors."""
        from safetensors.torch import load_file

        path = self.folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)


def write_checkpoint(folder: Path, case: Case) -> Checkpoint:
    stated = LLAMA_CONFIG | SIZES | case.sizes
    config = stated | {"quantization_config": case.settings, "tie_word_embeddings": False}
    write_hub_folder(folder, config=config)
    shapes = ModelConfig(
        architecture="llama",
        vocab_size=stated["vocab_size"],
        hidden_size=stated["hidden_size"],
        intermediate_size=stated["intermediate_size"],
        num_layers=stated["num_hidden_layers"],
        num_heads=stated["num_attention_heads"],
        num_kv_heads=stated["num_key_value_heads"],
        head_dim=stated["head_dim"],
        max_position=512,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
    )
    tensors, twin, meant = {}, {}, {}
    for name, weight in tiny_tensors(shapes).items():
        if "_proj.weight" not in name:
            tensors[name] = weight.to(case.plain)
            twin[name] = tensors[name].float()
            continue
        module = name.removesuffix(".weight")
        parts, meant[name] = case.writer(weight)
        tensors |= {f"{module}.{part}": each for part, each in parts.items()}
        twin[name] = meant[name].clone()
    save_file(tensors, folder / "model.safetensors")
    path = folder / "twin" / "model.safetensors"
    path.parent.mkdir()
    save_file(twin, path)
    files = WeightFiles(format="safetensors", files=(str(path),), dtype="float32")
    return Checkpoint(folder, files, meant)


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """quantization_config as compressed-tensors writes it."""
    scheme = {"num_bits": 8, "type": "int", "strategy": "channel", "dynamic": False, **weights}
    inputs = {"num_bits": 8, "type": scheme["type"], "strategy": "token", "dynamic": True}
    group = {
        "targets": ["Linear"],
        "weights": scheme,
        "input_activations": None if "pack" in form else inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "ignore": ["lm_head", "re:.*router"],
        "config_groups": {"group_0": group},
    }


AWQ_SETTINGS = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "GEMM",
    "modules_to_not_convert": None,
}
GPTQ_SETTINGS = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": False,
    "damp_percent": 0.1,
    "true_sequential": True,
    "checkpoint_format": "gptq",
    "meta": {"quantizer": ["gptqmodel:1.0"]},
}
FP8_SETTINGS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
NF4_SETTINGS = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_compute_dtype": "bfloat16",
    "llm_int8_threshold": 6.0,
}
HALF, BRAIN = torch.float16, torch.bfloat16
V2 = {"checkpoint_format": "gptq_v2"}
FLOAT8 = {"type": "float", "num_bits": 8}
ODD = {"hidden_size": 60, "head_dim": 16}

CASES = {
    "AWQ": Case(AWQ_SETTINGS, awq(32)),
    "AWQ, one group": Case(AWQ_SETTINGS | {"group_size": -1}, awq(None)),
    "GPTQ, first format": Case(GPTQ_SETTINGS, gptq(4, 32, first=True)),
    "GPTQ, second format": Case(GPTQ_SETTINGS | V2, gptq(4, 32, first=False)),
    "GPTQ, 8 bits": Case(
        GPTQ_SETTINGS | {"bits": 8, "group_size": -1}, gptq(8, None, first=True)
    ),
    "GPTQ, act-order": Case(
        GPTQ_SETTINGS | {"desc_act": True}, gptq(4, 32, first=True, spread=True)
    ),
    "GPTQ, groups of 16": Case(GPTQ_SETTINGS | {"group_size": 16}, gptq(4, 16, first=True)),
    "W4A16": Case(
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=32),
        packed(4, 32, HALF, symmetric=True),
    ),
    "W4A16, asymmetric": Case(
        compressed(
            "pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False
        ),
        packed(4, 32, BRAIN, symmetric=False),
        plain=BRAIN,
    ),
    "W4A16, act-order": Case(
        compressed(
            "pack-quantized", num_bits=4, strategy="group", group_size=32, actorder="group"
        ),
        packed(4, 32, HALF, symmetric=True, spread=True),
    ),
    "W8A16": Case(compressed("pack-quantized"), packed(8, None, BRAIN, symmetric=True)),
    "W8A16, wide scales": Case(
        compressed("pack-quantized"), packed(8, None, torch.float32, symmetric=True)
    ),
    "INT8": Case(compressed("int-quantized"), int8(BRAIN), plain=BRAIN, sizes=ODD),
    "INT8, asymmetric": Case(
        compressed("int-quantized", symmetric=False), int8(HALF, symmetric=False)
    ),
    "INT8, per tensor": Case(
        compressed("int-quantized", strategy="tensor"), int8(torch.float32, per_matrix=True)
    ),
    "FP8, per tensor": Case(
        compressed("float-quantized", strategy="tensor", **FLOAT8),
        fp8(None, BRAIN, name="weight_scale"),
        plain=BRAIN,
    ),
    "FP8, per channel": Case(
        compressed("float-quantized", **FLOAT8),
        fp8((1, 1 << 20), name="weight_scale"),
        plain=BRAIN,
        sizes=ODD,
    ),
    "FP8, blocks": Case(
        FP8_SETTINGS | {"weight_block_size": [40, 32]},
        fp8((40, 32), name="weight_scale_inv"),
        plain=BRAIN,
        sizes=ODD,
    ),
    "FP8, blocks of powers": Case(
        FP8_SETTINGS | {"weight_block_size": [32, 32], "scale_fmt": "ue8m0"},
        fp8((32, 32), name="weight_scale_inv", power=True),
        plain=BRAIN,
    ),
    "FP8 of fbgemm": Case(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        fp8((1, 1 << 20), name="weight_scale"),
        plain=BRAIN,
    ),
    "MXFP4": Case(
        compressed(
            "mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32
        ),
        mxfp4,
        plain=BRAIN,
    ),
    "NF4": Case(NF4_SETTINGS, nf4(double=False), plain=BRAIN),
    "NF4, scales quantised too": Case(
        NF4_SETTINGS | {"bnb_4bit_use_double_quant": True}, nf4(double=True), plain=BRAIN
    ),
}  # fmt: skip
