"""Phi-4-multimodal's checkpoint as its makers have it: other names of what sees, and two adapters
of the decoder's among its weights."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import UnsupportedModel
from penstock.model.prepared_model import WeightFiles
from penstock_worker.weights.opening import open_weights
from tests.worker.vision.pictures import picture
from tests.worker.vision.vision_cases import CASES, Ours, both, opened

CASE = "phi4-multimodal"
MAKERS = {
    "img_projection_up.": "img_projection.0.",
    "img_projection_down.": "img_projection.2.",
    "sub_img_feature_extensor": "sub_GN",
    "global_img_feature_extensor": "glb_GN",
}
ADAPTED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
RANK = 3


def of_makers(ours: Ours, folder: Path, adapters: tuple[str, ...]) -> WeightFiles:
    """The same model in their names. adapters: of its decoder's matrices."""
    (file,) = ours.files.files
    made: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(file).items():
        for theirs, own in MAKERS.items():
            name = name.replace(theirs, own)
        module = name.removesuffix(".weight")
        if "extend" not in name and module.endswith(ADAPTED):
            name = f"{module}.base_layer.weight"
            for adapter in adapters:
                for which, shape in (("A", (RANK, tensor.shape[1])), ("B", (len(tensor), RANK))):
                    made[f"{module}.lora_{which}.{adapter}.weight"] = torch.randn(shape)
        made[name] = tensor
    count = 2 * len(adapters) * len(ADAPTED) * ours.config.num_layers
    assert sum(".lora_" in name for name in made) == count
    path = folder / "model.safetensors"
    save_file(made, path)
    return msgspec.structs.replace(ours.files, files=(str(path),))


def tensors_of(ours: Ours, files: WeightFiles) -> dict[str, torch.Tensor]:
    """What is read of the decoder, by our names."""
    found = {}
    for name, stored in open_weights(files, ours.config, torch.float32)._tensors.items():
        found[name] = torch.empty(stored.shape)
        stored.read_into(found[name])
    return found


def test_the_model_is_the_one_without_adapters(tmp_path: Path) -> None:
    _, ours = both(CASE)
    files = of_makers(ours, tmp_path, ("vision", "speech"))
    true, found = tensors_of(ours, ours.files), tensors_of(ours, files)
    assert true.keys() == found.keys()
    assert all(torch.equal(found[name], each) for name, each in true.items())
    theirs = opened(ours.config, files)
    shown = picture(CASES[CASE].preparation, 3, 1)
    rows = [each.tower.encode(each.tower.read(shown.inputs)) for each in (ours, theirs)]
    assert torch.equal(*rows)


def test_another_adapter_is_not_taken_for_theirs(tmp_path: Path) -> None:
    _, ours = both(CASE)
    files = of_makers(ours, tmp_path, ("vision", "default"))
    with pytest.raises(UnsupportedModel, match=r"default\.weight is part of an adapter"):
        open_weights(files, ours.config, torch.float32)
