"""Other weights for several engine cores, of which some don't take them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client import replacing
from penstock.client.open_calls import OpenCalls
from penstock.errors import DeadlineExceeded, InvalidRequest, RequestFailed
from penstock.protocol.common import CallCode
from penstock.protocol.from_frontend import ReplaceWeights
from penstock.protocol.to_frontend import Called
from tests.engine.small_facts import facts

FOLDER, MODEL = Path("/new"), facts().model


class Engine:
    """A session with one that answers at once."""

    connected = True
    welcome = SimpleNamespace(replaces=True, media=None)

    def __init__(self, name: str, code: CallCode) -> None:
        self.endpoint, self._code = f"tcp://{name}:1", code
        self.calls = OpenCalls()

    def send(self, message: ReplaceWeights) -> bool:
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
