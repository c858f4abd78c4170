"""Other weights for several engine cores, of which some don't take them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.client import replacing
from penstock.client.open_calls import OpenCalls
from penstock.errors import DeadlineExceeded, InvalidRequest, RequestFailed
from penstock.prepare import load_manifest, prepare
from penstock.prepare.overrides import overrides_of
from penstock.protocol.common import CallCode
from penstock.protocol.from_frontend import ReplaceWeights
from penstock.protocol.to_frontend import Called
from testing.tiny_models import LLAMA_CONFIG, write_hub_folder
from tests.engine.small_facts import facts

FOLDER, MODEL = Path("/new"), facts().model


class Engine:
    """A session with one that answers at once."""

    connected = True

    def __init__(self, name: str, code: CallCode, overrides: str = "") -> None:
        self.endpoint, self._code = f"tcp://{name}:1", code
        self.welcome = SimpleNamespace(replaces=True, media=None, overrides=overrides)
        self.calls = OpenCalls()
        self.sent: list[ReplaceWeights] = []

    def send(self, message: ReplaceWeights) -> bool:
        self.sent.append(message)
        error = f"{self.endpoint} says so" if self._code else ""
        self.calls.take(Called(message.call, 0, 1, code=self._code, error=error))
        return True


def replaced(monkeypatch: pytest.MonkeyPatch, *codes: CallCode) -> None:
    monkeypatch.setattr(replacing, "_prepared", lambda *_: (FOLDER, MODEL))
    engines: list[Any] = [Engine(name, code) for name, code in zip("abc", codes, strict=False)]
    asyncio.run(replacing.replace_weights(engines, "/new"))


def test_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, "", "")
    with pytest.raises(DeadlineExceeded, match=r"^tcp://a:1 says so$"):
        replaced(monkeypatch, "timed_out", "failed")
    with pytest.raises(InvalidRequest) as refused:
        replaced(monkeypatch, "invalid")
    assert refused.value.param == "model_path"


def test_an_error_says_that_only_some_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it must know that nothing stayed as it was."""
    with pytest.raises(RequestFailed) as told:
        replaced(monkeypatch, "", "timed_out", "")
    assert str(told.value) == (
        "2 of 3 engine cores have the new weights; until the others have them too, answers use"
        " either: tcp://b:1: tcp://b:1 says so"
    )


def test_new_weights_are_described_as_the_old_ones(tmp_path: Path) -> None:
    """With what --hf-overrides and --rope-scaling say of the served model."""
    folder, other = (
        write_hub_folder(tmp_path / name, config={**LLAMA_CONFIG, "max_position_embeddings": 128})
        for name in ("served", "new")
    )
    config = facts().config
    settings = msgspec.structs.replace(config.model, hf_overrides='{"rope_theta": 7.0}')
    overrides = overrides_of(settings)
    served = load_manifest(prepare(str(folder), cache_dir=tmp_path, overrides=overrides))
    config = msgspec.structs.replace(config, model=settings)
    welcome = msgspec.structs.replace(facts(), config=config, model=served).welcome(1, 100)
    engine = Engine("a", "", welcome.overrides)
    sessions: list[Any] = [engine]
    asyncio.run(replacing.replace_weights(sessions, other, cache_dir=str(tmp_path)))
    [sent] = engine.sent
    assert sent.model.config == served.config
    plain = load_manifest(prepare(str(other), cache_dir=tmp_path))
    assert sent.model.config != plain.config
