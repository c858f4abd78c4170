"""Assistants in GGUF files, converted as llama.cpp's converter does it: their drafts are those of
transformers' own generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.model.config import HeadConfig
from penstock.model.speculation import SpeculativeConfig
from penstock.prepare import load_manifest, prepare
from penstock.prepare.gguf_config import read_config
from penstock_worker.loading.load import load
from tests.worker.driver import GREEDY, Driver, Job
from tests.worker.models import gemma_gguf, gguf_writing
from tests.worker.models.gguf_writing import Conversion
from tests.worker.speculation import test_assistants
from tests.worker.speculation.assistant_folders import CASES, COUNTED, Assisted, assisted
from tests.worker.speculation.draft_folders import draft_setup
from tests.worker.speculation.slow_heads import HIDDEN
from tests.worker.speculation.test_exactness import same

pytestmark = pytest.mark.timeout(240)

ARCH = "gemma4-assistant"
JOINS = ("pre_projection", "post_projection")


@dataclass
class Text:
    """What `gguf_writing.write` asks of a model: an assistant's layers."""

    config: Any
    tensors: dict[str, Tensor]

    def state_dict(self) -> dict[str, Tensor]:
        return self.tensors


def write(
    path: Path,
    assistant: Any,
    change: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
) -> None:
    """Groups of ids are left out. change: makes another file of it before tensors are added."""
    state = assistant.state_dict()

    def says(writer: gguf.GGUFWriter, config: Any) -> None:
        gemma_gguf.gemma4(writer, config)
        writer.add_embedding_length_out(assistant.config.backbone_hidden_size)
        writer.add_uint32(f"{ARCH}.nextn_predict_layers", config.num_hidden_layers)
        for name in JOINS:
            matrix = state[f"{name}.weight"].contiguous().numpy()
            writer.add_tensor(f"nextn.{name}.weight", matrix)
        change(writer)

    layers = {
        name: each for name, each in state.items() if not name.startswith((*JOINS, "masked_"))
    }
    how = Conversion(gguf.MODEL_ARCH.GEMMA4, says, own_parts=gemma_gguf.parts)
    text = Text(assistant.config.get_text_config(), layers)
    gguf_writing.write(path, text, how, lambda at, arch: gguf.GGUFWriter(at, ARCH))


def from_gguf(model: Assisted, folder: Path) -> Assisted:
    path = folder / "assistant.gguf"
    write(path, model.assistant)
    prepared = prepare(str(path), cache_dir=folder / "cache")
    return replace(model, said=model.said | {"model": str(prepared)})


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Assisted:
    folder = tmp_path_factory.mktemp("assisted")
    made = from_gguf(assisted(request.param, folder), folder)
    made.assistant.config.use_ordered_embeddings = False  # as it isn't in the file
    return made


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_drafts_are_those_of_transformers(model: Assisted, backend: str) -> None:
    test_assistants.test_drafts_are_those_of_transformers(model, backend)


def test_settings_are_those_of_config_json(tmp_path: Path) -> None:
    made = assisted("the last one stores", tmp_path)
    hub, own = load_manifest(Path(made.said["model"])).config, from_gguf(made, tmp_path)
    config = load_manifest(Path(own.said["model"])).config
    assert isinstance(hub, HeadConfig)
    assert isinstance(config, HeadConfig)
    layers = [
        [msgspec.structs.replace(each.attention, values_of_keys=False) for each in head.layers]
        for head in (hub, config)
    ]
    assert layers[0] == layers[1]
    alike = msgspec.structs.replace(config, ropes=hub.ropes, layers=hub.layers)
    assert alike == hub


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_quantised_one_drafts_and_changes_no_bit(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, kind = gguf.GGUFWriter.add_tensor, gguf.GGMLQuantizationType.Q8_0

    def quantised(writer: gguf.GGUFWriter, name: str, tensor: Any) -> None:
        if tensor.ndim < 2 or tensor.shape[-1] % 32:
            plain(writer, name, tensor)
        else:
            plain(writer, name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)

    made = assisted(COUNTED, tmp_path, counts=True)
    with monkeypatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", quantised)
        made = from_gguf(made, tmp_path)
    setup = draft_setup(made.folder, made.folder, backend=backend)
    found = []
    for said in (SpeculativeConfig(**made.said, num_speculative_tokens=3), None):
        loaded = load(msgspec.structs.replace(setup, max_model_len=200, speculation=said))
        jobs = [Job([at, at + 1, at + 2], 12, GREEDY) for at in (5, 90)]
        found.append(Driver(loaded.runner, num_blocks=80, slots=12, draft=2).run(jobs))
        loaded.runner.close()
    drafted, true = found
    same(drafted, true)
    assert sum(job.kept for job in drafted) > 4


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("attention.shared_kv_layers", 1, "attention.shared_kv_layers is 1; 3, as of an assistant"),
        ("nextn_predict_layers", 1, "nextn_predict_layers is 1; 3, as of an assistant of 3 layers"),
        ("embedding_length_per_layer_input", 8, "embedding_length_per_layer_input is 8; 0, as of"),
        ("embedding_length_out", HIDDEN + 8, "hidden size 72; the model has"),
    ],
)
def test_others_are_refused(key: str, value: int, said: str, tmp_path: Path) -> None:
    made = assisted("the last one stores", tmp_path)
    path = tmp_path / "assistant.gguf"

    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][f"{ARCH}.{key}"].value = value

    write(path, made.assistant, change)
    if key == "embedding_length_out":
        folder = prepare(str(path), cache_dir=tmp_path / "cache")
        assert said in test_assistants.refused(made, model=str(folder))
        return
    with pytest.raises(UnsupportedModel, match=said):
        read_config(GGUFFile(path))
