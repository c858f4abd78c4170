"""Adapters by their name on a hub on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from penstock.adapters import read_adapter
from penstock.errors import InvalidRequest
from penstock.hub import fetch as hub_adapter
from penstock.hub import transfer
from penstock.hub.connection import Hub
from penstock.prepare import adapters as copies
from penstock.prepare.adapters import prepare_adapter
from testing.hub_server import HubRepository, HubServer, serving_hub
from tests.adapter_folders import random_factors, write_gguf, write_peft

pytestmark = pytest.mark.timeout(120)
SHAPES = {"model.layers.0.self_attn.q_proj": (16, 8)}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")
    monkeypatch.setattr(transfer, "RETRY_SECONDS", 0.0)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    folder = write_peft(tmp_path / "peft", random_factors(SHAPES, 4, 1))
    peft = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = {"README.md": b"", "optimizer.pt": os.urandom(1000), "tokenizer.json": b"{}"}
    one = write_gguf(tmp_path / "a-F16.gguf", random_factors({"blk.0.attn_q": (16, 8)}, 4, 2))
    two = {"a-F16.gguf": one.read_bytes(), "b-Q8_0.gguf": b"GGUF"}
    repositories = {
        "peft": HubRepository(peft | others),
        "single": HubRepository({"a-F16.gguf": one.read_bytes()}),
        "several": HubRepository(two),
        "model": HubRepository(dict(others)),
        "beside": HubRepository(
            others | {f"vision-lora/{name}": content for name, content in peft.items()}
        ),
    }
    with serving_hub(**repositories) as hub:
        ours = Hub(endpoint=hub.url, cache=tmp_path / "hub")
        monkeypatch.setattr(hub_adapter, "default_hub", lambda: ours)
        yield hub


def test_the_adapters_files_come_and_no_others(server: HubServer, tmp_path: Path) -> None:
    found = prepare_adapter("org/peft", max_rank=4, cache_dir=tmp_path)
    assert found == prepare_adapter(tmp_path / "peft", max_rank=4, cache_dir=tmp_path)
    assert not server.sent("optimizer.pt")
    assert not server.sent("tokenizer.json")
    server.requests.clear()
    assert prepare_adapter("org/peft", max_rank=4, cache_dir=tmp_path) == found
    assert not server.requests


@pytest.mark.parametrize("name", ["org/beside:vision-lora", "org/beside:vision-lora/"])
def test_an_adapter_in_a_folder_of_its_model(server: HubServer, tmp_path: Path, name: str) -> None:
    """Phi-4-multimodal's adapters lie so."""
    found = prepare_adapter(name, max_rank=4, cache_dir=tmp_path)
    assert found == prepare_adapter(tmp_path / "peft", max_rank=4, cache_dir=tmp_path)
    assert not server.sent("optimizer.pt")
    server.requests.clear()
    assert prepare_adapter(name, max_rank=4, cache_dir=tmp_path) == found
    assert not server.requests


@pytest.mark.parametrize("name", ["org/single", "org/several:F16", "org/several:a-F16.gguf"])
def test_a_gguf_file_is_found_by_its_name(server: HubServer, tmp_path: Path, name: str) -> None:
    found = prepare_adapter(name, max_rank=4, cache_dir=tmp_path)
    assert found.file.digest == read_adapter(tmp_path / "a-F16.gguf")[0]
    assert not server.sent("b-Q8_0.gguf")


def test_what_cannot_be_had_is_said(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, why in (
        ("org/several", "a-F16.gguf, b-Q8_0.gguf"),
        ("org/model", "adapter_config.json and adapter_model.safetensors are needed"),
        ("org/beside", "a folder within the repository"),
        ("org/beside:speech-lora", "a folder within the repository"),
        ("org/nothing", "org/nothing"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            prepare_adapter(name, max_rank=4, cache_dir=tmp_path)
    monkeypatch.setattr(copies, "MAX_ADAPTER_BYTES", 100)
    with pytest.raises(InvalidRequest, match=r"at most 0\.1 kB are downloaded"):
        prepare_adapter("org/peft", max_rank=4, cache_dir=tmp_path)
    assert not server.sent("adapter_model.safetensors")


def test_a_client_names_no_repository(server: HubServer, tmp_path: Path) -> None:
    """Below a folder only paths count."""
    with pytest.raises(InvalidRequest, match="no adapter is at org/peft"):
        prepare_adapter(
            tmp_path / "org/peft", max_rank=4, cache_dir=tmp_path, within=tmp_path, shown="org/peft"
        )
    assert not server.requests


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "~nobody-of-this-name/a", "\ud800"])
def test_what_can_be_no_path_is_said_to_be_none(tmp_path: Path, name: str, within: bool) -> None:
    with pytest.raises(InvalidRequest, match="no adapter is at"):
        prepare_adapter(name, max_rank=4, cache_dir=tmp_path, within=tmp_path if within else None)
