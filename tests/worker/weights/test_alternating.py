"""Stacks of experts as gpt-oss has them: cut into the matrices that their definition means."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.hub_config import read_config
from penstock.prepare.quantised import read_quantisation
from penstock_worker.weights.opening import open_weights
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import config_class
from tests.worker.models.parity import run_with_logits

EXPERTS, HIDDEN, INNER = 3, 64, 96
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
NAME = "model.layers.0.mlp.experts"

Change = Callable[[dict[str, torch.Tensor]], object]
"""Damages the tensors that it gets."""


def settings() -> dict[str, object]:
    return config_class("GptOss")(
        vocab_size=50,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        architectures=["GptOssForCausalLM"],
    ).to_dict()


def config() -> ModelConfig:
    return read_config(Fields(settings(), "config.json"))


def other_tensors(generator: torch.Generator) -> dict[str, torch.Tensor]:
    at = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (50, HIDDEN),
        "lm_head.weight": (50, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{at}.input_layernorm.weight": (HIDDEN,),
        f"{at}.post_attention_layernorm.weight": (HIDDEN,),
        f"{at}.self_attn.sinks": (4,),
        f"{at}.self_attn.q_proj.weight": (64, HIDDEN),
        f"{at}.self_attn.k_proj.weight": (32, HIDDEN),
        f"{at}.self_attn.v_proj.weight": (32, HIDDEN),
        f"{at}.self_attn.o_proj.weight": (HIDDEN, 64),
        f"{at}.self_attn.q_proj.bias": (64,),
        f"{at}.self_attn.k_proj.bias": (32,),
        f"{at}.self_attn.v_proj.bias": (32,),
        f"{at}.self_attn.o_proj.bias": (HIDDEN,),
        f"{at}.mlp.router.weight": (EXPERTS, HIDDEN),
        f"{at}.mlp.router.bias": (EXPERTS,),
        f"{NAME}.gate_up_proj_bias": (EXPERTS, 2 * INNER),
        f"{NAME}.down_proj_bias": (EXPERTS, HIDDEN),
    }
    return {
        name: torch.randn(*shape, generator=generator).bfloat16() * 0.3
        for name, shape in shapes.items()
    }


def random_mxfp4(
    outputs: int, inputs: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks, scales, and the numbers that they mean, one by one: [experts, outputs, inputs]."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (EXPERTS, outputs, inputs // 32, 16), dtype=np.uint8)
    scales = rng.integers(120, 126, (EXPERTS, outputs, inputs // 32), dtype=np.uint8)
    values = np.empty((EXPERTS, outputs, inputs), dtype=np.float32)
    for at in np.ndindex(values.shape):
        byte = int(blocks[at[0], at[1], at[2] // 32, at[2] % 32 // 2])
        code = byte >> 4 if at[2] % 2 else byte & 15
        number = -E2M1[code & 7] if code & 8 else E2M1[code]
        values[at] = number * 2.0 ** (int(scales[at[0], at[1], at[2] // 32]) - 127)
    return torch.from_numpy(blocks), torch.from_numpy(scales), torch.from_numpy(values)


class Files:
    """Files of one model twice: experts in MXFP4, and as floats."""

    def __init__(self, folder: Path) -> None:
        rest = other_tensors(torch.Generator().manual_seed(1))
        self.meant, packed, plain = {}, {}, {}
        sizes = {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
        for seed, (name, (outputs, inputs)) in enumerate(sizes.items()):
            blocks, scales, self.meant[name] = random_mxfp4(outputs, inputs, seed)
            packed |= {f"{NAME}.{name}_blocks": blocks, f"{NAME}.{name}_scales": scales}
            turned = self.meant[name].transpose(1, 2).contiguous().bfloat16()
            plain[f"{NAME}.{name}"] = turned
        self.tensors = rest | packed
        said = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
        quantised = read_quantisation(Fields({"quantization_config": said}, "config.json"))
        self.packed = self._save(folder / "packed.safetensors", self.tensors, "mxfp4")
        self.packed = self._quantised(self.packed, quantised)
        self.plain = self._save(folder / "plain.safetensors", rest | plain, "bfloat16")

    @staticmethod
    def _save(path: Path, tensors: dict[str, torch.Tensor], dtype: str) -> WeightFiles:
        save_file(tensors, path)
        return WeightFiles(format="safetensors", files=(str(path),), dtype=dtype)

    @staticmethod
    def _quantised(files: WeightFiles, quantised: object) -> WeightFiles:
        return WeightFiles(
            format=files.format, files=files.files, dtype=files.dtype, quantised=quantised
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("stacks"))


@pytest.mark.parametrize("form", ["packed", "plain"])
def test_matrices_are_what_the_format_means(files: Files, form: str) -> None:
    weights = open_weights(getattr(files, form), config(), torch.float32)
    stack, biases = files.meant["gate_up_proj"], files.tensors[f"{NAME}.gate_up_proj_bias"]
    for expert in range(EXPERTS):
        at = f"layers.0.mlp.experts.{expert}"
        for first, part in enumerate(("gate_proj", "up_proj")):
            found = weights.take(f"{at}.{part}.weight", (INNER, HIDDEN))
            assert torch.equal(found, stack[expert, first::2])
            bias = weights.take(f"{at}.{part}.bias", (INNER,))
            assert torch.equal(bias, biases[expert, first::2].float())
        down = weights.take(f"{at}.down_proj.weight", (HIDDEN, INNER))
        assert torch.equal(down, files.meant["down_proj"][expert])


def test_the_cpu_kernels_keep_four_bits(files: Files) -> None:
    """They compute the same as with the numbers unpacked, up to activations of 8 bits."""
    kept = CPUModel(config(), files.packed, "auto", positions=128)
    assert kept.recipe().dtype == "mxfp4"
    unpacked = CPUModel(config(), files.plain, "float32", positions=128)
    prompts = [list(range(20)), [7, 3, 40, 11]]
    for (_, ours), (_, plain) in zip(
        run_with_logits(kept, prompts, 1), run_with_logits(unpacked, prompts, 1), strict=True
    ):
        assert (ours - plain).abs().max() < 0.05 * plain.abs().max()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop(f"{NAME}.down_proj_scales"), "the scales of .* are missing"),
        (lambda t: t.pop(f"{NAME}.down_proj_blocks"), "but no mlp.experts.down_proj_blocks"),
        (
            lambda t: t.update({f"{NAME}.down_proj_scales": torch.zeros(1, 2, dtype=torch.uint8)}),
            r"are U8 \(1, 2\)",
        ),
        (
            lambda t: t.update({f"{NAME}.gate_up_proj_bias": torch.zeros(2, 3, 5)}),
            "2 dimensions are expected",
        ),
    ],
)
def test_damaged_stacks_are_refused(
    files: Files, change: Change, said: str, tmp_path: Path
) -> None:
    tensors = dict(files.tensors)
    change(tensors)
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    broken = WeightFiles(
        format="safetensors",
        files=(str(path),),
        dtype="mxfp4",
        quantised=files.packed.quantised,
    )
    with pytest.raises(UnsupportedModel, match=said):
        open_weights(broken, config(), torch.float32)


def test_another_clamp_is_refused() -> None:
    assert json.dumps(settings())  # as a file has it
    with pytest.raises(UnsupportedModel, match="swiglu_limit is 5"):
        read_config(Fields(settings() | {"swiglu_limit": 5.0}, "config.json"))
