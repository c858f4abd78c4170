"""The models that a configuration names become prepared folders before anything is started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.config.settings import EngineConfig, LogSettings, ModelSettings
from penstock.config.speculative_settings import SpeculativeSettings
from penstock.errors import StartupError
from penstock.prepare import load_manifest
from penstock.supervisor import preparing
from penstock.supervisor.preparing import Preparation, Stopped, with_draft_folder
from testing.tiny_models import write_hub_folder


def config(tmp_path: Path, speculative_config: str) -> EngineConfig:
    return EngineConfig(
        model=ModelSettings(model="served", cache_dir=str(tmp_path / "cache")),
        speculation=SpeculativeSettings(speculative_config=speculative_config),
    )


def with_folder(config: EngineConfig, preparation: Preparation) -> EngineConfig:
    return asyncio.run(with_draft_folder(config, preparation))


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    return Preparation(tmp_path / "failure", LogSettings())


def test_a_draft_model_is_prepared_and_found_again(
    tmp_path: Path, preparation: Preparation
) -> None:
    named = write_hub_folder(tmp_path / "small")
    asked = config(tmp_path, f'{{"model": "{named}", "num_speculative_tokens": 3}}')
    first = with_folder(asked, preparation)
    found = first.speculation.config
    assert found is not None
    assert (found.method, found.num_speculative_tokens) == ("draft_model", 3)
    assert load_manifest(found.model).name == "small"
    assert first.model == asked.model
    preparation.stop()  # Nothing is left to be made.
    assert with_folder(asked, preparation) == first


def test_other_methods_have_nothing_to_prepare(tmp_path: Path, preparation: Preparation) -> None:
    preparation.stop()
    for text in ('{"method": "ngram"}', "off"):
        asked = config(tmp_path, text)
        assert with_folder(asked, preparation) == asked


def test_a_draft_model_that_is_not_there_is_named(tmp_path: Path, preparation: Preparation) -> None:
    asked = config(tmp_path, f'{{"model": "{tmp_path}/absent"}}')
    with pytest.raises(StartupError, match="absent"):
        with_folder(asked, preparation)


def test_what_is_to_stop_prepares_nothing(tmp_path: Path, preparation: Preparation) -> None:
    named = write_hub_folder(tmp_path / "small")
    preparation.stop()
    with pytest.raises(Stopped):
        with_folder(config(tmp_path, f'{{"model": "{named}"}}'), preparation)


@pytest.mark.parametrize("signal", ["BUS", "ABRT", "SEGV"])
def test_a_model_that_brings_its_process_down_is_named(
    tmp_path: Path, preparation: Preparation, monkeypatch: pytest.MonkeyPatch, signal: str
) -> None:
    """A file that becomes shorter while it is read does so."""

    async def start(*_: object, stdout: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec("sh", "-c", f"kill -{signal} $$", stdout=stdout)

    monkeypatch.setattr(preparing, "start", start)
    asked = config(tmp_path, f'{{"model": "{write_hub_folder(tmp_path / "small")}"}}')
    with pytest.raises(
        StartupError, match=rf"small' could not be prepared.* killed by SIG{signal}"
    ):
        with_folder(asked, preparation)
