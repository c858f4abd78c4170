"""Files of models that see: every naming that releases have had, and a quantised decoder beside a
plain tower."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.quantised import read_quantisation
from penstock_worker.vision.vision_model import VisionModel, open_tower
from penstock_worker.weights.lacking_names import tower_name
from penstock_worker.weights.tower_files import tower_tensors
from tests.worker.quantised_checkpoints import compressed
from tests.worker.quantised_writers import packed
from tests.worker.vision.pictures import picture
from tests.worker.vision.vision_cases import CASES, Ours, make_theirs, opened, saved

Rename = Callable[[str], str]


def renamed(*rules: tuple[str, str]) -> Rename:
    def rename(name: str) -> str:
        for pattern, target in rules:
            name = re.sub(pattern, target, name)
        return name

    return rename


CLIP_4 = renamed(
    (r"^(?:model\.)?language_model\.(?:model\.)?", "language_model.model."),
    (r"^(?:model\.)?vision_tower\.(?:vision_model\.)?", "vision_tower.vision_model."),
    (r"^(?:model\.)?multi_modal_projector", "multi_modal_projector"),
    (r"^lm_head", "language_model.lm_head"),
)
CLIP_5 = renamed(
    (r"^language_model\.lm_head", "lm_head"),
    (r"^(?:model\.)?language_model\.(?:model\.)?", "model.language_model."),
    (r"^(?:model\.)?vision_tower\.(?:vision_model\.)?", "model.vision_tower."),
    (r"^(?:model\.)?multi_modal_projector", "model.multi_modal_projector"),
)
QWEN_4 = renamed(
    (r"^(?:model\.)?language_model\.", "model."),
    (r"^(?:model\.)?visual\.", "visual."),
)
QWEN_5 = renamed(
    (r"^model\.(?!visual|language_model)", "model.language_model."),
    (r"^(?:model\.)?visual\.", "model.visual."),
)
M3 = renamed((r"\.block_sparse_moe\.fc", ".mlp.fc"))
NAMINGS = {
    "llava as releases have it": ("llava", CLIP_4),
    "llava as transformers 5 names it": ("llava", CLIP_5),
    "gemma 3 as releases have it": ("gemma3", CLIP_4),
    "gemma 3 as transformers 5 names it": ("gemma3", CLIP_5),
    "qwen as releases have it": ("qwen2.5-vl", QWEN_4),
    "qwen 3 as releases have it": ("qwen3-vl", QWEN_5),
    "qwen as transformers 5 names it": ("qwen2.5-vl", QWEN_5),
    "minimax m3 as releases have it": ("minimax-m3", M3),
}


def encoding(ours: Ours, case: str) -> Tensor:
    shown = picture(CASES[case].preparation, 2, 3)
    with torch.inference_mode():
        return ours.tower.encode(ours.tower.read(shown.inputs))


def rewritten(files: WeightFiles, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    (file,) = files.files
    save_file(change(load_file(file)), file)


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_naming_changes_nothing(naming: str, tmp_path: Path) -> None:
    case, rename = NAMINGS[naming]
    config, files = saved(make_theirs(case), tmp_path)
    before = opened(config, files)
    names: set[str] = set()

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names.update(map(rename, tensors))
        return {rename(name): tensor.clone() for name, tensor in tensors.items()}

    rewritten(files, change)
    after = opened(config, files)
    assert torch.equal(encoding(before, case), encoding(after, case))
    assert torch.equal(before.decoder.embedding, after.decoder.embedding)
    assert any("visual." in name or "vision_tower." in name for name in names)


BESIDE: dict[str, tuple[str, tuple[str, ...]]] = {
    "minicpm-v-2.6": (
        "",
        (
            "apm.conv1.weight",
            "audio_projection_layer.linear1.weight",
            "resampler.temporal_pos_embed",
            "tts.emb_text.weight",
        ),
    ),
    "qwen3-omni": (
        "thinker.",
        ("code2wav.decoder.0.conv.weight", "talker.model.layers.0.input_layernorm.weight"),
    ),
    "qwen2.5-omni": (
        "thinker.",
        ("token2wav.code2wav_bigvgan_model.conv_pre.weight", "talker.codec_head.weight"),
    ),
}
"""What stands before the names in makers' files, and what else these hold: MiniCPM-o hears, and it
and the Omnis speak."""


@pytest.mark.parametrize("case", BESIDE)
def test_what_hears_and_speaks_is_passed_over(case: str, tmp_path: Path) -> None:
    begin, others = BESIDE[case]
    config, files = saved(make_theirs(case), tmp_path)
    before = encoding(opened(config, files), case)

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {f"{begin}{name}": tensor.clone() for name, tensor in tensors.items()}
        return own | {name: torch.ones(3, 2) for name in others}

    rewritten(files, change)
    assert torch.equal(before, encoding(opened(config, files), case))


def test_experts_in_one_tensor_may_be_transposed(tmp_path: Path) -> None:
    """Releases have them so, and transformers writes them as its module has them."""
    config, files = saved(make_theirs("qwen3-vl-moe"), tmp_path)
    rows = torch.arange(7)
    before = experts_of(opened(config, files), rows)
    turned: list[str] = []

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        turned.extend(name for name in tensors if ".experts." in name)
        return {
            name: tensor.transpose(1, 2).contiguous() if name in turned else tensor.clone()
            for name, tensor in tensors.items()
        }

    rewritten(files, change)
    assert len(turned) == 4
    assert torch.equal(before, experts_of(opened(config, files), rows))


def experts_of(ours: Ours, rows: Tensor) -> Tensor:
    """What the first layer's experts make of some embeddings."""
    with torch.inference_mode():
        found: Tensor = ours.decoder.layers[2].feed_forward(ours.decoder.embedding[rows])
        return found


def test_a_quantised_decoder_has_a_plain_tower(tmp_path: Path) -> None:
    config, files = saved(make_theirs("llava"), tmp_path)
    before = opened(config, files)
    write = packed(8, None, torch.float32, symmetric=True)

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():
            module = name.removesuffix(".weight")
            if "language_model" in name and "_proj.weight" in name:
                parts, _ = write(tensor)
                found |= {f"{module}.{part}": each for part, each in parts.items()}
            else:
                found[name] = tensor.clone()
        return found

    rewritten(files, change)
    said = compressed("pack-quantized", strategy="channel", symmetric=True)
    stated = said | {"ignore": ["lm_head", "re:.*vision_tower.*", "re:.*multi_modal_projector.*"]}
    quantised = read_quantisation(Fields({"quantization_config": stated}, "config.json"))
    after = opened(config, msgspec.structs.replace(files, quantised=quantised))
    assert torch.equal(encoding(before, "llava"), encoding(after, "llava"))
    assert torch.equal(before.decoder.embedding, after.decoder.embedding)


def test_a_layer_for_drafts_behind_the_last_is_left_out(tmp_path: Path) -> None:
    """GLM-OCR's releases have one."""
    config, files = saved(make_theirs("glm-ocr"), tmp_path)
    before = opened(config, files)
    last, head = "language_model.layers.2.", "model.language_model.layers.3.eh_proj.weight"

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        behind = {
            name.replace(last, "language_model.layers.3."): tensor.clone()
            for name, tensor in tensors.items()
            if last in name
        }
        assert len(behind) > 5
        return tensors | behind | {head: torch.ones(72, 144)}

    rewritten(files, change)
    after = opened(config, files)
    assert torch.equal(encoding(before, "glm-ocr"), encoding(after, "glm-ocr"))
    assert len(after.decoder.layers) == 3


def test_tensors_that_nobody_needs_are_refused(tmp_path: Path) -> None:
    """What is behind the output that is taken isn't among them."""
    config, files = saved(make_theirs("llava"), tmp_path)
    names = load_file(files.files[0])
    assert any("layers.2." in name and "vision" in name for name in names), "one too many"
    rewritten(files, lambda all_: all_ | {"vision_tower.vision_model.gate.weight": torch.ones(3)})
    with pytest.raises(UnsupportedModel, match=r"doesn't use: vision_tower.vision_model.gate"):
        opened(config, files)


def test_a_table_of_other_positions_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    config, files = saved(make_theirs("gemma3"), tmp_path)
    assert config.vision is not None
    tower = config.vision.tower
    positions = msgspec.structs.replace(tower.positions, side=1024)
    large = msgspec.structs.replace(tower, positions=positions, hidden_size=48)
    vision = msgspec.structs.replace(config.vision, tower=large)
    other: ModelConfig = msgspec.structs.replace(config, vision=vision)
    with pytest.raises(UnsupportedModel, match=r"position_embedding.weight has shape \(64, 48\)"):
        VisionModel(other, open_tower(files, torch.float32))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES)
def test_a_tensor_that_is_lacking_is_called_as_in_the_files(case: str, tmp_path: Path) -> None:
    """The error has the name by which the tensor was saved."""
    _, files = saved(make_theirs(case), tmp_path)
    tensors, names = tower_tensors(files, "vision")
    needed = {name: each for name, each in tensors.items() if not name.startswith("head.")}
    for name, each in needed.items():
        rest = {ours: other for ours, other in tensors.items() if ours != name}
        called = tower_name(name, rest, names)
        assert each.name in called.split(" or "), (name, called)


def test_a_tower_says_so(tmp_path: Path) -> None:
    config, files = saved(make_theirs("llava"), tmp_path)
    bias = "model.vision_tower.encoder.layers.1.self_attn.k_proj.bias"
    (lacking,) = (name for name in load_file(files.files[0]) if name.endswith(bias[-40:]))
    rewritten(files, lambda all_: {name: each for name, each in all_.items() if name != lacking})
    with pytest.raises(UnsupportedModel, match=rf"lacks the tensor {re.escape(lacking)} of shape"):
        opened(config, files)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_none_are_refused_with_the_tensors_name(
    value: float, tmp_path: Path
) -> None:
    """One is enough, and would otherwise be said of every picture."""
    config, files = saved(make_theirs("llava"), tmp_path)
    names: list[str] = []

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names.extend(name for name in tensors if name.endswith("layers.0.mlp.fc1.weight"))
        changed = {name: each.clone() for name, each in tensors.items()}
        changed[names[0]][3, 5] = value
        return changed

    rewritten(files, change)
    with pytest.raises(UnsupportedModel, match=rf"{re.escape(names[0])} holds numbers that aren't"):
        opened(config, files)


def test_more_layers_than_config_json_says_are_refused(tmp_path: Path) -> None:
    config, files = saved(make_theirs("gemma3"), tmp_path)
    assert config.vision is not None
    fewer = msgspec.structs.replace(config.vision.tower, num_layers=2)
    vision = msgspec.structs.replace(config.vision, tower=fewer)
    with pytest.raises(UnsupportedModel, match=r"doesn't use: .*layers\.2\."):
        opened(msgspec.structs.replace(config, vision=vision), files)
