"""A model that sees, loaded as a worker loads it: which backend, what of memory, what it tells."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.mechanisms import VISION
from penstock.model.prepared_model import PreparedModel
from penstock.prepare.folder import MANIFEST
from penstock.protocol.from_worker import MediaFailed, MediaReady, MediaTaken
from penstock.protocol.to_worker import Plan, Setup
from penstock.protocol.worker_resources import LoadMediaChunk
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Unable, require
from penstock_worker.loading.load import load
from penstock_worker.machine import doctor, memory
from penstock_worker.machine.memory import pool_blocks
from penstock_worker.media import memory as media_memory
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.memory import USUAL_ROWS, media_rows
from tests.worker.vision.picture_runners import message_of
from tests.worker.vision.pictures import picture, prompt_of, words
from tests.worker.vision.test_vision_bits import new, work
from tests.worker.vision.vision_cases import CASES, prepared_folder

CASE = "llava"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llava")
    prepared_folder(CASE, made)
    return made


def setup(folder: Path, **options: Any) -> Setup:
    required: dict[str, Any] = {
        "version": 1,
        "model_dir": str(folder),
        "dtype": "float32",
        "attention_backend": "auto",
        "threads": 1,
        "block_size": 16,
        "num_kv_blocks": 64,
        "kv_memory_fraction": 0.5,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 256,
        "max_model_len": 200,
    }
    return Setup(**(required | options))


def changed(folder: Path, to: Path, **changes: Any) -> Path:
    """A prepared folder whose manifest says something else."""
    prepared = read(folder)
    other = msgspec.structs.replace(prepared, **changes)
    (to / MANIFEST).write_bytes(msgspec.json.encode(other))
    return to


def test_an_item_in_chunks_becomes_a_token(folder: Path) -> None:
    loaded = load(setup(folder))
    assert loaded.ready.media_rows == USUAL_ROWS
    assert not loaded.ready.whole_spans
    shown, answers = picture(CASES[CASE].preparation, 1, 1), SimpleQueue[Any]()
    media, name = loaded.runner.feature(MediaEncodings), shown.item.name
    media.hear(message_of(shown.item), (), answers.put)
    media.hear(LoadMediaChunk(name, 0), [shown.content[:100]], answers.put)
    assert answers.get(timeout=60) == MediaTaken(name, 100)
    media.hear(LoadMediaChunk(name, 100), [shown.content[100:]], answers.put)
    assert isinstance(answers.get(timeout=60), MediaReady)
    tokens, spans = prompt_of([words(5, 1), shown])
    assert spans is not None
    plan = Plan(1, 0, [], [new(0, tokens, spans, [0, 1])], [work(0, 0, tokens)], encode=[name])
    (result,) = loaded.runner.execute(plan).slots
    assert result.error is None
    assert result.token is not None
    loaded.runner.close()


def test_rows_of_many_requests_are_kept_within_a_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short prompts are: the requests that wait may show the same pictures."""
    config = read(folder).decoder
    assert media_rows(config, 200, 4) == media_rows(config, 1 << 20, 4) == USUAL_ROWS
    monkeypatch.setattr(media_memory, "USUAL_BYTES", 300 * 72 * 4)
    assert [media_rows(config, longest, 4) for longest in (200, 400)] == [300, 400]
    assert media_rows(config, 1 << 20, 4) == USUAL_ROWS
    assert media_rows(config, 200, 2) == 600
    assert media_rows(config, 200, 4, 16) == 16


def test_the_rows_that_are_asked_for_are_kept(folder: Path) -> None:
    loaded = load(setup(folder, encoder_cache_rows=16))
    assert loaded.ready.media_rows == 16
    loaded.runner.close()


def test_as_much_may_wait_as_is_told_and_twice_that_is_held(folder: Path) -> None:
    """The engine core keeps to what it is told, but for one item at a time."""
    longest = 200 * 3 * 7 * 7 + 256 * 4096
    for wanted, told in ((0, longest), (1 << 30, longest), (100_000, 100_000)):
        loaded = load(setup(folder, media_load_bytes=wanted))
        media = loaded.runner.feature(MediaEncodings)
        assert isinstance(media, MediaEncodings)
        assert loaded.ready.media_bytes == told
        assert media._store is not None
        assert media._store._bounds.size == 2 * told
        assert media.nbytes == USUAL_ROWS * 72 * 4 + 2 * told
        loaded.runner.close()


def read(folder: Path) -> PreparedModel:
    return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=PreparedModel)


@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
def test_auto_takes_the_kernels_of_the_processor(folder: Path, backend: str) -> None:
    recipe = choose(read(folder), setup(folder, attention_backend=backend), 1)
    assert recipe.backend.split()[0] == ("reference" if backend == "reference" else "cpu")
    assert recipe.media is not None


def test_a_backend_that_lacks_what_pictures_need_says_how_to_do_without(folder: Path) -> None:
    config = read(folder).decoder
    with pytest.raises(Unable, match="the model has a tower that sees; with --language-model-only"):
        require(frozenset(), config)
    assert config.vision is not None
    whole = msgspec.structs.replace(config.vision, spans_whole=True)
    with pytest.raises(Unable, match="rows see one another; with --language-model-only"):
        require(frozenset({VISION}), msgspec.structs.replace(config, vision=whole))
    other = msgspec.structs.replace(config, embedding_multiplier=2.0)
    with pytest.raises(Unable, match=r"an embedding multiplier$"):
        require(frozenset({VISION}), other)


def test_a_decoder_without_its_tower_takes_no_pictures(folder: Path, tmp_path: Path) -> None:
    text = msgspec.structs.replace(read(folder).decoder, vision=None)
    loaded = load(
        setup(changed(folder, tmp_path, config=text, media=None), attention_backend="cpu")
    )
    assert loaded.ready.media_rows == 0
    answers: SimpleQueue[Any] = SimpleQueue()
    item = picture(CASES[CASE].preparation, 1, 1).item
    loaded.runner.receive(message_of(item), answers.put)
    assert isinstance(answers.get(timeout=60), MediaFailed)
    loaded.runner.close()


def test_a_model_whose_preparation_nobody_knows_takes_no_pictures(
    folder: Path, tmp_path: Path
) -> None:
    loaded = load(setup(changed(folder, tmp_path, media=None)))
    assert loaded.ready.media_rows == 0
    loaded.runner.close()


def test_a_tower_that_the_files_dont_hold_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    prepared = read(folder)
    vision = prepared.decoder.vision
    assert vision is not None
    for tower, wanted in (
        (msgspec.structs.replace(vision.tower, num_layers=9), r"layers\.3\.layer_norm1\.weight"),
        (msgspec.structs.replace(vision.tower, hidden_size=1 << 15, num_heads=8), "shape"),
        (msgspec.structs.replace(vision.tower, first_norm=False), "doesn't use: .*pre_layrnorm"),
    ):
        other = msgspec.structs.replace(vision, tower=tower)
        config = msgspec.structs.replace(prepared.decoder, vision=other)
        with pytest.raises(UnsupportedModel, match=wanted):
            load(setup(changed(folder, tmp_path, config=config)))


def test_the_pool_leaves_room_for_media(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1000 << 20)
    asked = setup(folder, num_kv_blocks=None, max_model_len=1 << 20, max_num_seqs=64)
    assert pool_blocks(asked, 1 << 20, media=300 << 20) == 350
    with pytest.raises(StartupError, match="encoder_cache_rows"):
        pool_blocks(asked, 1 << 20, media=1001 << 20)


def test_doctor_says_what_pictures_take(folder: Path) -> None:
    prepared = read(folder)
    (finding,) = doctor._media(prepared)
    row, pixels = 72 * 4, 3 * 7 * 7
    size = USUAL_ROWS * row + 2 * (256 * pixels + 256 * 4096)
    assert finding.text.startswith(f"{size / (1 << 20):.0f} MiB for {USUAL_ROWS} rows")
    assert "--language-model-only" in finding.text
    (lacking,) = doctor._media(msgspec.structs.replace(prepared, media=None))
    assert lacking.level == "note"
    text = msgspec.structs.replace(prepared.decoder, vision=None)
    assert not doctor._media(msgspec.structs.replace(prepared, config=text))
