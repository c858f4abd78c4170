"""DeepSeek-V4's head in the formats of files: in FP8 as releases have it, and in GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.errors import StartupError, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.prepared_model import WeightFiles
from penstock.prepare import load_manifest
from penstock.prepare.folder import MANIFEST
from penstock.prepare.quantised import read_quantisation
from penstock_worker.loading.load import load
from penstock_worker.weights.heads import cut_join
from penstock_worker.weights.stored import StoredTensor
from tests.worker.models import test_gguf_v4
from tests.worker.models.test_quantised_v4 import FP8, fp8_of_v4
from tests.worker.speculation import head_folders, test_draft_heads
from tests.worker.speculation.head_folders import Served, written
from tests.worker.speculation.slow_heads import LAYERS
from tests.worker.speculation.test_gguf_heads import gguf_folder
from tests.worker.speculation.test_head_loading import setup_for

pytestmark = pytest.mark.timeout(240)

BACKENDS = ["cpu", "reference"]
RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens that an entry stands for, in releases: GGUF files know no others."""
NEXTN = {
    "enorm.weight": "enorm",
    "hnorm.weight": "hnorm",
    "norm.weight": "shared_head_norm",
    **{f"hc_head_{part}": f"hc_head_{part}" for part in ("fn", "base", "scale")},
}


def writes(head: dict[str, Tensor]) -> Callable[[gguf.GGUFWriter], None]:
    """Adds what stands beside the layer. `head`: by the names of releases, without `mtp.0.`."""

    def add(writer: gguf.GGUFWriter) -> None:
        ratios = writer.kv_data[0]["deepseek4.attention.compress_ratios"]
        kinds = {"sliding_attention": 0, **RATES}
        ratios.value = [*(kinds[each] for each in head_folders.V4_KINDS), 0]
        both = torch.cat([head["e_proj.weight"], head["h_proj.weight"]], 1)
        tensors = {"eh_proj": both} | {
            ours: head[theirs] for theirs, ours in NEXTN.items() if theirs in head
        }
        for name, tensor in tensors.items():
            writer.add_tensor(f"blk.{LAYERS}.nextn.{name}.weight", tensor.contiguous().numpy())

    return add


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setitem(
        head_folders.SERVED, "DeepseekV4", head_folders.V4 | {"compress_rates": RATES}
    )
    return written("DeepseekV4", "mtp", tmp_path)


def own_of(served: Served) -> dict[str, Tensor]:
    return {name.removeprefix("mtp.0."): each for name, each in served.slow.tensors.items()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("own_ends", [True, False])
def test_drafts_from_gguf_are_those_of_the_definition(
    own_ends: bool, backend: str, made: Served, tmp_path: Path
) -> None:
    """Files of older converters lack the head's weights of what is read behind its layer: llama.cpp
    takes the model's."""
    head, path, theirs = own_of(made), tmp_path / "model.gguf", made.reference.hub
    if not own_ends:
        for part in ("fn", "base", "scale"):
            name = f"hc_head_{part}"
            models = theirs.model.hc_head.state_dict()[f"hc_{part}"]
            made.slow.tensors[f"mtp.0.{name}"].copy_(models)
            del head[name]
    test_gguf_v4.write(path, theirs, writes(head))
    served = replace(made, folder=gguf_folder(path, tmp_path / "of gguf"))
    test_draft_heads.test_drafts_are_those_of_the_definition(served, backend)


def test_a_quantised_product_is_cut_between_its_blocks() -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    both = torch.randn(8, 128, generator=torch.Generator().manual_seed(1)).numpy()
    packed = gguf.quants.quantize(both, kind)
    own = {"eh_proj.weight": StoredTensor("both", (8, 128), "Q8_0", packed.reshape(-1))}
    cut_join(own)
    found = []
    for name in ("e_proj", "h_proj"):
        found.append(torch.empty(8, 64))
        own.pop(f"{name}.weight").read_into(found[-1])
    assert not own
    meant = torch.from_numpy(gguf.quants.dequantize(packed, kind))
    assert torch.equal(torch.cat(found, 1), meant)


def test_a_product_that_cannot_be_cut_in_two(made: Served, tmp_path: Path) -> None:
    """A block of its type would lie on both sides."""
    kind, path = gguf.GGMLQuantizationType.Q4_K, tmp_path / "model.gguf"
    add = writes(own_of(made))

    def quantised(writer: gguf.GGUFWriter) -> None:
        add(writer)
        name = f"blk.{LAYERS}.nextn.eh_proj.weight"
        for shard in writer.tensors:
            shard.pop(name, None)
        writer.add_tensor(name, np.zeros((64, 144), np.uint8), raw_dtype=kind)

    test_gguf_v4.write(path, made.reference.hub, quantised)
    with pytest.raises(UnsupportedModel, match=r"eh_proj.* Q4_K of shape .* can't be cut in two"):
        load(setup_for(gguf_folder(path, tmp_path / "of gguf"), None))


def test_a_file_without_a_head_says_so(made: Served, tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "model.safetensors"
    save_file({n: t for n, t in load_file(hub).items() if not n.startswith("mtp.")}, hub)
    with pytest.raises(StartupError, match=r"it has no mtp\.0\.h_proj; method suffix"):
        load(setup_for(made.folder, None))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_head_in_fp8_computes_what_its_weights_mean(
    backend: str, made: Served, tmp_path: Path
) -> None:
    path = tmp_path / "hub" / "model.safetensors"
    tensors = load_file(path)
    for module in ("e_proj", "h_proj"):
        name = f"mtp.0.{module}"
        parts, meant = fp8_of_v4(tensors.pop(f"{name}.weight"))
        made.slow.tensors[f"{name}.weight"].copy_(meant)
        tensors |= {f"{name}.{part}": each.contiguous() for part, each in parts.items()}
    save_file(tensors, path)
    manifest = load_manifest(made.folder)
    quantised = read_quantisation(Fields({"quantization_config": FP8}, "config.json"))
    files = WeightFiles(
        format="safetensors", files=manifest.weights.files, dtype="float32", quantised=quantised
    )
    said = msgspec.structs.replace(manifest, weights=files)
    (made.folder / MANIFEST).write_bytes(msgspec.json.encode(said))
    test_draft_heads.test_drafts_are_those_of_the_definition(made, backend)
