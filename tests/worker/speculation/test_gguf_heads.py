"""Heads in GGUF files, converted as llama.cpp's converter does it: their drafts are those of the
published definition."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.errors import StartupError, UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST, TOKENIZER
from penstock.prepare.gguf_config import read_config
from penstock_worker.loading.load import load
from tests.worker.driver import GREEDY, Driver, Job
from tests.worker.models import test_gguf_families as attending
from tests.worker.models import test_recurrent_gguf as recurrent
from tests.worker.speculation import head_folders, test_draft_heads
from tests.worker.speculation.head_folders import Served, written
from tests.worker.speculation.slow_heads import FULL, LAYERS, LINEAR
from tests.worker.speculation.test_exactness import same
from tests.worker.speculation.test_head_loading import setup_for

BESIDE = {
    **{f"mtp.layers.{draft}.": f"model.layers.{LAYERS + draft}." for draft in range(2)},
    "mtp.fc.": f"model.layers.{LAYERS}.eh_proj.",
    "mtp.pre_fc_norm_embedding.": f"model.layers.{LAYERS}.enorm.",
    "mtp.pre_fc_norm_hidden.": f"model.layers.{LAYERS}.hnorm.",
    "mtp.norm.": f"model.layers.{LAYERS}.shared_head.norm.",
}
"""How the converter of Qwen's families renames what stands beside the layers."""
RECURRENT = {
    "Qwen3Next": recurrent.CONVERSIONS["qwen3-next-sparse"],
    "Qwen3_5": recurrent.CONVERSIONS["qwen35"],
    "Qwen3_5Moe": recurrent.CONVERSIONS["qwen35-moe-of-four"],
}
KINDS = [("DeepseekV3", 1), ("Glm4Moe", 2), ("Qwen3_5", 2), ("Qwen3Next", 1), ("Qwen3_5Moe", 1)]
"""With so many layers of a head."""
ATTENDING = {
    "Glm4Moe": attending.CONVERSIONS["glm45"],
    "DeepseekV3": attending.CONVERSIONS["deepseek-v3-plain"],
}


@dataclass
class Hub:
    """What `attending.write` asks of a model."""

    config: Any
    tensors: dict[str, Tensor]

    def state_dict(self) -> dict[str, Tensor]:
        return self.tensors


def renamed(name: str) -> str:
    for theirs, ours in BESIDE.items():
        name = name.replace(theirs, ours)
    return name


def know_heads_of(how: Any) -> None:
    """Newer converters write heads of more families than the package `gguf` knows of."""
    known = gguf.MODEL_TENSORS[how.architecture]
    known += [
        each
        for each in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.GLM4_MOE]
        if each.name.startswith("NEXTN") and each not in known
    ]


def write(kind: str, served: Served, hub: Path, path: Path) -> None:
    know_heads_of(ATTENDING[kind] if kind in ATTENDING else RECURRENT[kind])

    def with_head(says: Any) -> Any:
        def both(writer: gguf.GGUFWriter, config: Any) -> None:
            says(writer, config)
            writer.add_nextn_predict_layers(len(served.slow.layers))

        return both

    config = served.reference.hub.config
    tensors = {renamed(name): each for name, each in load_file(hub / "model.safetensors").items()}
    if kind in RECURRENT:
        how = RECURRENT[kind]
        folder = path.parent / "renamed"
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        recurrent.write(path, folder, config, replace(how, says=with_head(how.says)))
    else:
        plain = ATTENDING[kind]
        of_hub = served.reference.hub.state_dict() | {
            name: each for name, each in tensors.items() if name in served.slow.tensors
        }
        attending.write(path, Hub(config, of_hub), replace(plain, says=with_head(plain.says)))


def gguf_folder(path: Path, folder: Path) -> Path:
    manifest = PreparedModel(
        format_version=FORMAT_VERSION,
        name=path.name,
        source=path.name,
        config=read_config(GGUFFile(path)),
        generation=GenerationDefaults(),
        weights=WeightFiles(format="gguf", files=(str(path),), dtype="F32"),
        digest=str(path),
        has_chat_template=False,
    )
    folder.mkdir()
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    (folder / TOKENIZER).write_bytes(b"{}")
    return folder


@pytest.fixture(scope="module", params=KINDS, ids=[f"{kind}, {count}" for kind, count in KINDS])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("heads")
    with pytest.MonkeyPatch.context() as patch:
        # GGUF files say only which layer attends: every fourth.
        patch.setattr(head_folders, "HYBRID_LAYERS", [LINEAR, LINEAR, LINEAR, FULL])
        kind, layers = request.param
        made = written(kind, "mtp", folder, layers=layers)
    path = folder / "model.gguf"
    write(kind, made, folder / "hub", path)
    return replace(made, folder=gguf_folder(path, folder / "of gguf"))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_drafts_are_those_of_the_definition(served: Served, backend: str) -> None:
    test_draft_heads.test_drafts_are_those_of_the_definition(served, backend)


def test_a_file_without_a_head_says_so(tmp_path: Path) -> None:
    made = written("Glm4Moe", "eagle3", tmp_path)
    path = tmp_path / "model.gguf"
    hub = made.reference.hub
    attending.write(path, hub, ATTENDING["Glm4Moe"])
    setup = setup_for(gguf_folder(path, tmp_path / "of gguf"), None)
    wanted = r"it has no blk\.4\.nextn\.eh_proj\.weight; method suffix"
    with pytest.raises(StartupError, match=wanted):
        load(setup)


@pytest.mark.parametrize(
    "name",
    ["nextn.enorm.weight", "ffn_down_exps.weight", "exp_probs_b.bias", "attn_norm.weight"],
)
def test_a_tensor_that_a_head_lacks_is_called_as_in_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written("Glm4Moe", "mtp", tmp_path)
    plain, lacking = gguf.GGUFWriter.add_tensor, f"blk.4.{name}"

    def others(writer: gguf.GGUFWriter, each: str, tensor: Any) -> None:
        if each != lacking:
            plain(writer, each, tensor)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", others)
    path = tmp_path / "model.gguf"
    write("Glm4Moe", made, tmp_path / "hub", path)
    setup = setup_for(gguf_folder(path, tmp_path / "of gguf"), None)
    with pytest.raises(UnsupportedModel, match=f"lacks the tensor {re.escape(lacking)} of shape"):
        load(setup)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_quantised_heads_stay_so(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = gguf.GGUFWriter.add_tensor

    def quantised(writer: gguf.GGUFWriter, name: str, tensor: Any) -> None:
        kind = gguf.GGMLQuantizationType.Q8_0
        if tensor.ndim < 2 or tensor.shape[-1] % 32:
            plain(writer, name, tensor)
        else:
            plain(writer, name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", quantised)
    made = written("Glm4Moe", "mtp", tmp_path, counts=True)
    path = tmp_path / "model.gguf"
    write("Glm4Moe", made, tmp_path / "hub", path)
    setup = setup_for(gguf_folder(path, tmp_path / "of gguf"), None, backend)
    found = []
    for said in (setup.speculation, None):
        loaded = load(msgspec.structs.replace(setup, dtype="auto", speculation=said))
        jobs = [Job([at, at + 1, at + 2], 12, GREEDY) for at in (5, 90)]
        found.append(Driver(loaded.runner, num_blocks=80, slots=12, draft=2).run(jobs))
        loaded.runner.close()
    drafted, true = found
    same(drafted, true)
    assert sum(job.kept for job in drafted) > 4
