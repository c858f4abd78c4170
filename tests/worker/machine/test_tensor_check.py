"""Files whose tensors aren't what config.json asks for: `show`, `doctor` and the worker refuse them
alike, for the reason that the loaders have, and before any of the weights is read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.__main__ import main
from penstock.errors import UnsupportedModel
from penstock.prepare import load_manifest, prepare
from penstock_worker.loading.load import load
from penstock_worker.loading.tensors import check_tensors, cpu_bytes
from penstock_worker.machine.doctor import examine_model
from penstock_worker.weights.stored import StoredTensor
from testing.tiny_models import LLAMA_CONFIG, write_hub_folder
from tests.worker.checkpoints import tiny_setup
from tests.worker.cpu_model import CPUModel
from tests.worker.machine.test_model_check import completed
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.recurrent_cases import RECURRENT_CASES
from tests.worker.models.test_recurrent_models import read as read_recurrent

CONFIG = LLAMA_CONFIG | {"head_dim": 16}
UP, NORM = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
Tensors = dict[str, Tensor]


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: each for key, each in tensors.items() if key != name}


def with_other(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: make(tensors[name]).contiguous()}


def with_new(name: str, tensor: Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: tensor}


BROKEN: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "a matrix is missing": (without(UP), f"lacks the tensor {UP} of shape"),
    "the last norm is missing": (without(NORM), f"lacks the tensor {NORM} of shape (24,)"),
    "rows are missing": (with_other(UP, lambda x: x[:32]), f"{UP} has shape (32, 24)"),
    "it is turned": (with_other(UP, lambda x: x.T), f"{UP} has shape (24, 48)"),
    "a vector has two dimensions": (with_other(NORM, lambda x: x[None]), "has shape (1, 24)"),
    "one of many is FP8": (
        with_other(UP, lambda x: x.to(torch.float8_e4m3fn)),
        f"{UP} is stored as F8_E4M3; F32, F16, BF16",
    ),
    "one of many is int8": (with_other(UP, lambda x: x.to(torch.int8)), "is stored as I8"),
    "a norm is int64": (with_other(NORM, lambda x: x.long()), f"{NORM} is stored as I64"),
    "nobody asked for it": (
        with_new("model.layers.0.mlp.side_proj.weight", torch.ones(4, 4)),
        "has 1 tensors that the model doesn't use: model.layers.0.mlp.side_proj.weight",
    ),
    "nobody asked for a bias": (
        with_new("model.layers.0.mlp.up_proj.bias", torch.full((48,), 0.5)),
        "up_proj.bias (values up to 0.5)",
    ),
    "there is a second layer": (
        with_new("model.layers.1.mlp.up_proj.weight", torch.ones(48, 24)),
        "doesn't use: model.layers.1.mlp.up_proj.weight",
    ),
}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    folder = completed(write_hub_folder(tmp_path_factory.mktemp("whole"), config=CONFIG))
    return load_file(folder / "model.safetensors")


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise AssertionError("data of a tensor was read")

    monkeypatch.setattr(StoredTensor, "read_part_into", refuse)
    yield
    monkeypatch.undo()


def reason_of_loaders(folder: Path, backend: str) -> str:
    prepared = load_manifest(prepare(str(folder)))
    model = CPUModel(prepared.decoder, prepared.weights, "float32", backend=backend)
    with pytest.raises(UnsupportedModel) as refused:
        model.forward(block_size=16, num_blocks=4, threads=1)
    return str(refused.value)


@pytest.mark.parametrize("case", BROKEN)
def test_all_refuse_it_for_the_loaders_reason(
    case: str,
    whole: Tensors,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change, said = BROKEN[case]
    folder = write_hub_folder(tmp_path / "broken", config=CONFIG)
    save_file(change(whole), folder / "model.safetensors")
    reason = reason_of_loaders(folder, "reference")
    assert said in reason
    assert reason_of_loaders(folder, "cpu") == reason
    prepared = prepare(str(folder))
    monkeypatch.setattr(StoredTensor, "read_part_into", lambda *_: pytest.fail("data was read"))
    (finding,) = [each for each in examine_model(str(folder)) if each.name == "tensors"]
    assert (finding.ok, finding.text) == (False, reason)
    assert main(["show", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refused"] == reason
    assert main(["show", str(folder)]) == 0
    assert f"no: {reason}" in capsys.readouterr().out
    with pytest.raises(UnsupportedModel) as refused:
        load(tiny_setup(tmp_path, model_dir=str(prepared), digest=""))
    assert str(refused.value) == reason


IN_A_WORKER = """
import json, sys
from penstock_worker.machine.torch_import import import_torch
import_torch()
import msgspec, torch
from penstock.model.config import ModelConfig
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import DummyWeights
from penstock_worker.weights.placing import nowhere
with torch.inference_mode():
    for case in json.load(sys.stdin):
        config = msgspec.json.decode(case, type=ModelConfig)
        DecoderModel(config, DummyWeights(torch.float32, nowhere()), positions=1)
left_out = sys.modules["torch._meta_registrations"]
assert "Deferred" in type(left_out).__name__, left_out
"""


def test_every_family_with_as_much_of_torch_as_a_worker_has() -> None:
    configs = [*map(read, CASES), *map(read_recurrent, RECURRENT_CASES)]
    subprocess.run(
        [sys.executable, "-c", IN_A_WORKER],
        input=json.dumps([msgspec.json.encode(config).decode() for config in configs]),
        text=True,
        check=True,
        timeout=120,
    )


def test_an_installation_without_workers(
    whole: Tensors,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_hub_folder(tmp_path / "sound", config=CONFIG)
    save_file(whole, folder / "model.safetensors")
    monkeypatch.setitem(sys.modules, "penstock_worker.loading.tensors", None)
    assert main(["show", str(folder)]) == 0
    assert "not known: no worker can be imported here" in capsys.readouterr().out


def test_sound_files_are_not_read(whole: Tensors, tmp_path: Path, unread: None) -> None:
    folder = write_hub_folder(tmp_path / "sound", config=CONFIG)
    save_file(whole, folder / "model.safetensors")
    prepared = load_manifest(prepare(str(folder)))
    check_tensors(prepared)
    by_name = {finding.name: finding for finding in examine_model(str(folder))}
    assert by_name["tensors"].ok
    assert cpu_bytes(prepared)


def test_memory_is_what_the_kernels_take(whole: Tensors, tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path / "sound", config=CONFIG)
    save_file(whole, folder / "model.safetensors")
    prepared = load_manifest(prepare(str(folder)))
    padded = {(700, 24): 704 * 32, (48, 24): 48 * 32, (24, 48): 32 * 64, (16, 24): 16 * 32}
    shapes = [tuple(each.shape) for each in whole.values() if each.dim() == 2]
    assert cpu_bytes(prepared) == 4 * sum(padded[shape] for shape in shapes)
