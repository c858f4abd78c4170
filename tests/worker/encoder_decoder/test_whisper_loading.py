"""An encoder-decoder model that can't be served says why when it is prepared, or loaded: a worker
that reported ready without room for an item would be turned away and started anew for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.pooling_config import PoolingConfig
from penstock.model.transcription_facts import Alignment
from penstock.prepare import load_manifest, prepare
from penstock_worker.alignment.slots import can_align
from penstock_worker.loading.load import load
from penstock_worker.machine import doctor
from tests.shared.transcription.test_segments import FACTS
from tests.system.whisper_model import ROWS, TARGETS, write_whisper
from tests.worker.vision.test_vision_loading import changed, setup


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("hub") / "tiny-whisper")


@pytest.fixture(scope="module")
def prepared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(str(folder), cache_dir=str(tmp_path_factory.mktemp("cache")))


def test_the_least_cache_holds_one_item(prepared: Path) -> None:
    asked = setup(prepared, max_model_len=ROWS + TARGETS, encoder_cache_rows=ROWS)
    loaded = load(asked)
    assert (loaded.ready.media_rows, loaded.ready.encoder_rows) == (ROWS, ROWS)
    loaded.runner.close()
    smaller = msgspec.structs.replace(asked, encoder_cache_rows=ROWS - 1)
    with pytest.raises(StartupError, match=f"encoder_cache_rows is {ROWS - 1}; .*least {ROWS} are"):
        load(smaller)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_ready_tells_whether_words_have_times(prepared: Path, tmp_path: Path, backend: str) -> None:
    media = load_manifest(prepared).media
    assert media is not None
    found = []
    for alignment in (None, Alignment(heads=((0, 0),))):
        facts = msgspec.structs.replace(FACTS, alignment=alignment)
        told = msgspec.structs.replace(media, transcription=facts)
        asked = setup(changed(prepared, tmp_path, media=told), max_model_len=ROWS + TARGETS)
        loaded = load(msgspec.structs.replace(asked, attention_backend=backend))
        loaded.runner.close()
        found.append(loaded.ready.aligns)
    assert found == [False, True]


def test_a_backend_that_shows_no_attention_tells_no_times(prepared: Path) -> None:
    assert not can_align(object(), load_manifest(prepared))


def test_a_folder_that_doesnt_say_how_sounds_are_prepared_is_refused(
    folder: Path, prepared: Path, tmp_path: Path
) -> None:
    silent = tmp_path / "silent"
    shutil.copytree(folder, silent, ignore=shutil.ignore_patterns("preprocessor_config.json"))
    with pytest.raises(UnsupportedModel, match=r"no preprocessor_config\.json, nor a .*sounds"):
        prepare(str(silent), cache_dir=str(tmp_path / "cache"))
    (finding,) = doctor.examine_model(str(silent))
    assert (finding.level, finding.ok) == ("missing", False)
    assert "preprocessor_config.json" in finding.text
    # A manifest that was written before.
    manifest = msgspec.structs.replace(load_manifest(prepared), media=None)
    (finding,) = doctor._media(manifest)
    assert finding.level == "missing"
    assert "text only" not in finding.text
    with pytest.raises(StartupError, match=r"preprocessor_config\.json"):
        load(setup(changed(prepared, tmp_path, media=None), max_model_len=ROWS + TARGETS))


def test_it_gives_no_vectors(folder: Path, prepared: Path, tmp_path: Path) -> None:
    pooling = tmp_path / "pooling"
    shutil.copytree(folder, pooling)
    parts = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ]
    (pooling / "modules.json").write_text(json.dumps(parts))
    (pooling / "1_Pooling").mkdir()
    flags = {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True}
    (pooling / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    with pytest.raises(UnsupportedModel, match="isn't served as a pooling model"):
        prepare(str(pooling), cache_dir=str(tmp_path / "cache"))
    asked = setup(prepared, max_model_len=ROWS + TARGETS)
    vectors = PoolingConfig(mode="last", normalize=True, size=64)
    with pytest.raises(StartupError, match="gives no vectors"):
        load(msgspec.structs.replace(asked, pooling=vectors))
