"""What a head has to be like, and what is said of one that isn't so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.config import HeadConfig
from penstock.model.speculation import SpeculativeConfig
from penstock.prepare import load_manifest, prepare
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.backends import choose
from penstock_worker.loading.load import load
from penstock_worker.parallel.ranks import ALONE
from penstock_worker.speculation.beside import Beside
from penstock_worker.speculation.head_loading import mtp_head
from penstock_worker.speculation.loaders import draft_loader
from penstock_worker.weights.heads import EMBEDDING, HEAD, OwnHeadFiles, SharedEnds
from tests.worker.speculation.draft_folders import SERVED, draft_setup, write_folder
from tests.worker.speculation.head_folders import written
from tests.worker.speculation.slow_heads import Eagle3, Reference

VOCAB, HIDDEN = SERVED.vocab_size, SERVED.hidden_size


def head_folder(folder: Path, **said: object) -> Path:
    """In the hub's format. `said`: other settings than config.json has by itself; None: without."""
    head = Eagle3(Reference(None), own=100)
    head.ids = torch.arange(100)
    said = {"vocab_size": VOCAB} | said
    head.config = {k: v for k, v in (head.config | said).items() if v is not None}
    head.write(folder)
    return folder


def setup_for(served: Path, head: Path | None, backend: str = "cpu") -> Setup:
    said = {"method": "mtp"} if head is None else {"method": "eagle3", "model": str(head)}
    return msgspec.structs.replace(
        draft_setup(served, served, backend=backend),
        max_model_len=200,
        speculation=SpeculativeConfig(**said, num_speculative_tokens=3),
    )


@pytest.fixture
def served(tmp_path: Path) -> Path:
    layers = msgspec.structs.replace(SERVED, num_layers=4)
    return write_folder(tmp_path / "served", layers)


def prepared(hub: Path, tmp_path: Path) -> Path:
    return prepare(str(hub), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_folder_is_prepared_and_blocks_have_room_for_both(
    backend: str, served: Path, tmp_path: Path
) -> None:
    head = prepared(head_folder(tmp_path / "head"), tmp_path)
    config = load_manifest(head).config
    assert isinstance(config, HeadConfig)
    assert (config.vocab_size, config.served_vocab, config.attention_inputs) == (100, VOCAB, 128)
    setup = setup_for(served, head, backend)
    own = choose(load_manifest(served), setup, 1)
    loader = draft_loader(load_manifest(served), own, setup, 1, ALONE)
    assert loader is not None
    both = loader.recipe()
    forward = both.build()(8)
    assert isinstance(forward, Beside)
    parts = forward.kv_blocks()
    assert {len(part) for part in parts} == {8}
    assert sum(part.shape[1] for part in parts) == both.block_bytes > own.block_bytes
    assert both.fingerprint == own.fingerprint


def test_speculators_describe_the_same_otherwise(tmp_path: Path) -> None:
    plain = load_manifest(prepared(head_folder(tmp_path / "plain"), tmp_path)).config
    path = head_folder(tmp_path / "other") / "config.json"
    said = json.loads(path.read_text())
    ours = ("architectures", "draft_vocab_size", "norm_before_residual")
    layer = {key: value for key, value in said.items() if key not in ours}
    other = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 100,
        "norm_before_residual": False,
        "transformer_layer_config": layer,
    }
    path.write_text(json.dumps(other))
    assert load_manifest(prepared(path.parent, tmp_path)).config == plain


def test_layers_are_counted_as_each_format_does(tmp_path: Path) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    for number, (said, layers) in enumerate([(ids, (1, 2, 3)), ({"eagle_config": ids}, (2, 3, 4))]):
        folder = head_folder(tmp_path / str(number), **said)
        config = load_manifest(prepared(folder, tmp_path)).config
        assert isinstance(config, HeadConfig)
        assert config.aux_layers == layers


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; 1 is needed"),
        ({"draft_vocab_size": 400}, "draft_vocab_size is 400; 1 to 160"),
        ({"model_type": "deepseek_v3"}, "model_type is 'deepseek_v3'; 'llama' is needed"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False"),
        ({"eagle_aux_hidden_state_layer_ids": [1]}, "3 numbers of layers are allowed"),
    ],
)
def test_other_heads_are_refused(said: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        prepared(head_folder(tmp_path / "head", **said), tmp_path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"vocab_size": 161}, "of 161 ids and hidden size 64; served has 160 and 64"),
        ({"target_hidden_size": 32}, "of 160 ids and hidden size 32; served has 160 and 64"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]},
            "reads behind layers 1, 2, 9; the model has 4",
        ),
    ],
)
def test_a_head_has_to_fit_its_model(
    said: dict[str, object], words: str, served: Path, tmp_path: Path
) -> None:
    head = prepared(head_folder(tmp_path / "head", **said), tmp_path)
    with pytest.raises(StartupError, match=words):
        load(setup_for(served, head))


def test_ids_are_each_there_once(served: Path, tmp_path: Path) -> None:
    hub = head_folder(tmp_path / "head")
    path = hub / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"d2t": tensors["d2t"] + 100}, path)
    with pytest.raises(UnsupportedModel, match="d2t names ids from 100 to 199; each is allowed"):
        load(setup_for(served, prepared(hub, tmp_path)))


def test_a_model_is_no_head_and_a_head_is_no_model(served: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="served is a model, and no head of EAGLE-3"):
        load(setup_for(served, served))
    head = prepared(head_folder(tmp_path / "head"), tmp_path)
    alone = msgspec.structs.replace(setup_for(head, head), speculation=None)
    with pytest.raises(UnsupportedModel, match="is a head, which drafts for a model"):
        load(alone)


def test_what_has_no_head_says_so(served: Path) -> None:
    with pytest.raises(StartupError, match=r"it has no layers\.4\.eh_proj; method suffix"):
        load(setup_for(served, None))


def test_a_head_beside_the_layers_is_read_by_its_own_names(tmp_path: Path) -> None:
    """What isn't known is refused."""
    model = written("Qwen3_5", "mtp", tmp_path)
    path = tmp_path / "hub" / "model.safetensors"
    tensors = load_file(path)
    config = load_manifest(model.folder).decoder
    assert mtp_head(config).layers == (config.layer(1),)
    setup = setup_for(model.folder, None)
    save_file(tensors | {"mtp.gate.weight": torch.ones(HIDDEN)}, path)
    with pytest.raises(UnsupportedModel, match="gate"):
        load(setup)
    save_file({name: each for name, each in tensors.items() if name != "mtp.fc.weight"}, path)
    with pytest.raises(StartupError, match=r"it has no mtp\.fc; method suffix"):
        load(setup)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(("kind", "drafts", "layers"), [("Glm4Moe", 4, 3), ("Qwen3_5", 2, 2)])
def test_each_layer_has_keys_and_values_of_its_own(
    kind: str, drafts: int, layers: int, backend: str, tmp_path: Path
) -> None:
    """There are no more layers than drafts, and they hold embedding and output head once."""
    model = written(kind, "mtp", tmp_path, layers=3)
    setup = setup_for(model.folder, None, backend)
    said = SpeculativeConfig(method="mtp", num_speculative_tokens=drafts)
    setup = msgspec.structs.replace(setup, speculation=said)
    manifest = load_manifest(model.folder)
    own = choose(manifest, setup, 1)
    loader = draft_loader(manifest, own, setup, 1, ALONE)
    assert loader is not None
    assert loader.told.get("draft_layers") == str(layers)
    both = loader.recipe()
    parts = both.build()(8).kv_blocks()
    assert sum(part.shape[1] for part in parts) == both.block_bytes
    each, rest = divmod(both.block_bytes - own.block_bytes, layers)
    assert each > 0
    assert rest == 0


def test_ends_that_are_the_same_tensor_are_made_once(tmp_path: Path) -> None:
    model = written("Glm4Moe", "mtp", tmp_path, layers=2)
    manifest = load_manifest(model.folder)
    files = OwnHeadFiles(manifest.weights, manifest.decoder)
    each = [files.weights(draft, mtp_head(manifest.decoder), torch.float32) for draft in range(2)]
    ends: SharedEnds[object] = SharedEnds()
    first, again = (ends.get(weights, EMBEDDING, object) for weights in each)
    assert first is again
    assert ends.get(each[0], HEAD, object) is not first
    assert ends.get(each[0], "norm.weight", object) is not ends.get(each[1], "norm.weight", object)


@pytest.mark.parametrize(
    ("kind", "head", "lacking"),
    [
        ("Glm4Moe", "mtp", "model.layers.4.enorm.weight"),
        ("Glm4Moe", "mtp", "model.layers.4.input_layernorm.weight"),
        ("Qwen3Next", "mtp", "mtp.pre_fc_norm_hidden.weight"),
        ("MiMo", "mtp", "model.mtp_layers.0.input_layernorm.weight"),
        ("Llama", "eagle3", "midlayer.self_attn.k_proj.weight"),
        ("Llama", "eagle3", "fc.weight"),
    ],
)
def test_a_tensor_that_a_head_lacks_is_called_as_in_its_files(
    kind: str, head: str, lacking: str, tmp_path: Path
) -> None:
    made = written(kind, head, tmp_path)
    path = tmp_path / ("hub" if head == "mtp" else "head") / "model.safetensors"
    tensors = load_file(path)
    del tensors[lacking]
    save_file(tensors, path)
    own = None if head == "mtp" else Path(made.said["model"])
    with pytest.raises(UnsupportedModel, match=f"lacks the tensor {re.escape(lacking)} of shape"):
        load(setup_for(made.folder, own))
