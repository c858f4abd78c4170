"""Requests with pictures and sounds, every way of running: the same tokens, and log-probabilities
and times of words, bit for bit.

{alone, crowded} x {prefix cache on, off} x {encoder cache on, off} x {chunks of 16, 64, whole} x
{undisturbed, worker killed, engine core killed}, of a model that sees, one whose pictures see
themselves as a whole, one that sees and has recurrent layers, one that hears, and tiny models of
late families: tiles, slices and lines of pictures, blocks of sounds, and both senses. All
combinations with --long.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pytest

from penstock.forms.registry import ImagePreparation
from penstock.model.media_facts import KindFacts, MediaKind
from penstock.model.sound_facts import SoundPreparation
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling, TokenSampling
from testing.in_process import Numerics, Way
from tests.shared.media.pictures import picture
from tests.system.in_process_media import Asked, Deaths, MediaSystem, alone, item_of, shown
from tests.system.seeing_models import SQUARE, write_gemma4, write_llava
from tests.system.transcribing_models import FRAMES, TARGETS, write_whisper
from tests.system.watching_models import PATCH, write_qwen3_5
from tests.worker.audio.hearing_cases import CASES as HEARING_CASES
from tests.worker.audio.hearing_cases import MAGNITUDES, SAMPLES
from tests.worker.audio.hearing_models import heard
from tests.worker.audio.hearing_models import make_theirs as make_hearing
from tests.worker.media.both_senses import HEARD, token_of, unified
from tests.worker.media.both_senses import model as sees_and_hears
from tests.worker.media_prompts import Shown, media_prompt
from tests.worker.vision.newer_cases import POOLED
from tests.worker.vision.pictures import picture as show
from tests.worker.vision.vision_cases import CASES, facts_of, make_theirs, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GREEDY = TokenSampling(seed=1, temperature=0.0, logprobs=3)
SAMPLED = TokenSampling(seed=77, temperature=0.9, top_p=0.95, logprobs=3)
NUMERICS = Numerics("cpu", "float32")
BLOCK = 16


@dataclass(frozen=True)
class Model:
    """A prepared folder, and what is asked of it."""

    folder: Path
    longest: int
    asked: dict[int, Asked]
    checkpoints: int | None = None
    """Tokens between two checkpoints of recurrent layers' states; None: it has no such layers."""


def seeing(folder: Path) -> Model:
    prepared = prepare(str(write_llava(folder / "llava")), cache_dir=folder / "cache")
    manifest = load_manifest(prepared)
    assert manifest.media is not None
    own = manifest.media.kinds["image"]
    rows = own.preparation.rows  # type: ignore[union-attr]
    side = own.preparation.height  # type: ignore[union-attr]
    return Model(prepared, 256, shown_twice(folder, own.token_id, side, side, rows))


def as_a_whole(folder: Path) -> Model:
    """Pictures of fewer rows than the shortest chunk has tokens."""
    prepared = prepare(str(write_gemma4(folder / "gemma4")), cache_dir=folder / "cache")
    manifest = load_manifest(prepared)
    assert manifest.media is not None
    own = manifest.media.kinds["image"]
    return Model(prepared, 256, shown_twice(folder, own.token_id, 3 * SQUARE, 4 * SQUARE, 12))


def recurrent(folder: Path) -> Model:
    prepared = prepare(str(write_qwen3_5(folder / "qwen3.5")), cache_dir=folder / "cache")
    manifest = load_manifest(prepared)
    assert manifest.media is not None
    own, merged = manifest.media.kinds["image"], 2 * PATCH
    asked = shown_twice(folder, own.token_id, 4 * merged, 5 * merged, 20, (1, 4, 5))
    return Model(prepared, 256, asked, checkpoints=BLOCK)


def shown_twice(
    folder: Path, token: int, height: int, width: int, rows: int, grid: tuple[int, ...] = ()
) -> dict[int, Asked]:
    """Requests with one of two pictures, and with both. rows, grid: of a picture."""
    paths = [folder / f"picture {number}" for number in range(2)]
    items = []
    for number, path in enumerate(paths):
        pixels = np.asarray(picture(width, height, number).convert("RGB"), np.uint8)[None]
        items.append(item_of(path, "image", "pixels", pixels, rows, grid))
    rng = random.Random(4)

    def prompt(*places: int) -> list[int]:
        """places: words before each picture, and behind the last."""
        found: list[int] = []
        for at, words in enumerate(places):
            found += [token] * rows if at else []
            found += [rng.randrange(10, 60) for _ in range(words)]
        return found

    return {
        1: Asked(prompt(3, 9), 12, GREEDY, shown((items[0], 3)), (paths[0],)),
        2: Asked(prompt(3, 20), 12, SAMPLED, shown((items[1], 3)), (paths[1],)),
        3: Asked(
            prompt(40, 2, 5),
            10,
            SAMPLED,
            shown((items[0], 40), (items[1], 42 + rows)),
            (paths[0], paths[1]),
        ),
    }


def hearing(folder: Path) -> Model:
    prepared = prepare(str(write_whisper(folder / "whisper", 64)), cache_dir=folder / "cache")
    manifest = load_manifest(prepared)
    start, rows = manifest.media.kinds["audio"].token_id, FRAMES // 2
    rng, paths = np.random.default_rng(5), [folder / f"sound {number}" for number in range(2)]
    items = [
        item_of(path, "audio", "mel", rng.normal(0, 1, (1, 16, FRAMES)).astype(np.float32), rows)
        for path in paths
    ]

    def asked(which: int, words: int, wanted: int, sampling: TokenSampling, **more: Any) -> Asked:
        prompt = [start] * (rows + 1) + rng.integers(10, 200, words).tolist()
        return Asked(prompt, wanted, sampling, shown((items[which], 0)), (paths[which],), **more)

    aligned = Pooling("align", rows=rows - 30, skipped=1)
    found = {
        1: asked(0, 2, 12, GREEDY),
        2: asked(1, 20, 12, SAMPLED),
        3: asked(0, 30, 1, TokenSampling(0), pooling=aligned),
    }
    return Model(prepared, TARGETS, found)


def seen_by(case: str) -> Callable[[Path], Model]:
    """case: of the workers' tests of models that see."""

    def made(folder: Path) -> Model:
        preparation = CASES[case].preparation
        written(make_theirs(case), {"image": facts_of(preparation)}, folder / case)
        config = CASES[case].settings["text_config"]
        every = BLOCK if "linear_attention" in config.get("layer_types", ()) else None
        return _showing(folder, case, [show(preparation, size, size) for size in (1, 2)], every)

    return made


def heard_in_blocks(folder: Path) -> Model:
    case = "qwen3-asr"
    facts = facts_of(HEARING_CASES[case].mel)
    written(make_hearing(case), {"audio": facts}, folder / case)
    return _showing(folder, case, [heard(case, seconds, 3) for seconds in (0.4, 1.3)])


def both_senses(folder: Path) -> Model:
    return _seeing_and_hearing(folder, sees_and_hears(), "gemma4", MAGNITUDES)


def squares_and_samples(folder: Path) -> Model:
    return _seeing_and_hearing(folder, unified(), "gemma4-12b", SAMPLES)


def planes_and_sounds(folder: Path) -> Model:
    case = "gemma3n"
    pictures, sounds = CASES[case].preparation, HEARING_CASES[case].mel
    return _seeing_and_hearing(folder, make_theirs(case), case, sounds, pictures)


def omni(case: str) -> Callable[[Path], Model]:
    def make(folder: Path) -> Model:
        pictures, sounds = CASES[case].preparation, HEARING_CASES[case].mel
        return _seeing_and_hearing(folder, make_theirs(case), case, sounds, pictures)

    return make


def _seeing_and_hearing(
    folder: Path,
    model: Any,
    case: str,
    sounds: SoundPreparation,
    pictures: ImagePreparation = POOLED,
) -> Model:
    """case: of the workers' tests of models that hear."""
    kinds: dict[MediaKind, KindFacts] = {
        "image": facts_of(pictures),
        "audio": facts_of(sounds, HEARD),
    }
    written(model, kinds, folder / "both")
    return _showing(folder, "both", [show(pictures, 2, 1), heard(case, 0.5, 2)])


def _showing(
    folder: Path, name: str, items: Sequence[ShownItem], checkpoints: int | None = None
) -> Model:
    """Requests with one of two items, and with both, of the model in a folder's folder."""
    paths = [folder / f"item {number}" for number in range(len(items))]
    for path, each in zip(paths, items, strict=True):
        path.write_bytes(each.content)

    def asked(wanted: int, sampling: TokenSampling, *parts: Sequence[int] | int) -> Asked:
        """parts: tokens, and numbers of items."""
        found = [items[part] if isinstance(part, int) else list(part) for part in parts]
        prompt, media = media_prompt(found, token_of, after=[7])
        assert media is not None
        shown_ = tuple(paths[part] for part in parts if isinstance(part, int))
        return Asked(prompt, wanted, sampling, media, shown_)

    words = random.Random(4).choices(range(10, 180), k=40)
    return Model(
        folder / name,
        256,
        {
            1: asked(12, GREEDY, words[:3], 0, words[3:12]),
            2: asked(12, SAMPLED, words[:3], 1, words[12:32]),
            3: asked(10, SAMPLED, words, 0, words[:2], 1, words[5:10]),
        },
        checkpoints,
    )


class ShownItem(Shown, Protocol):
    """An item with its bytes."""

    @property
    def content(self) -> bytes: ...


MODELS: dict[str, Callable[[Path], Model]] = {
    "pictures": seeing,
    "pictures seen as a whole": as_a_whole,
    "pictures and states": recurrent,
    "sounds": hearing,
    "slices and states": seen_by("minicpm-v"),
    "slices and queries": seen_by("minicpm-v-4.5"),
    "lines and levels": seen_by("granite4-vision"),
    "patches turned by frame, row and column": seen_by("minimax-m3"),
    "tiles": seen_by("qianfan-ocr"),
    "patches and latents": seen_by("kimi-vl"),
    "windows": seen_by("step-3.7"),
    "squares without a tower": seen_by("gemma4-12b"),
    "crops and tokens among them": seen_by("molmo2"),
    "planes of convolutions, and sounds": planes_and_sounds,
    "tiles without a class token": seen_by("janus"),
    "tiles between white bars": seen_by("phi3-v"),
    "tiles of the makers' files": seen_by("janus-of-makers"),
    "gated squares": seen_by("aya-vision"),
    "two towers": seen_by("deepseek-vl-hybrid"),
    "pages in lines": seen_by("deepseek-ocr"),
    "pages and queries": seen_by("deepseek-ocr2"),
    "blocks of sound": heard_in_blocks,
    "both senses": both_senses,
    "squares and samples": squares_and_samples,
    "levels of pictures, and blocks of sound": omni("qwen3-omni"),
    "windows of pictures, and blocks of sound": omni("qwen2.5-omni"),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return MODELS[request.param](tmp_path_factory.mktemp("matrix"))


Results = dict[int, tuple[list[int], bytes, bytes]]


def results(heard: dict[int, Any], vectors: dict[int, bytes]) -> Results:
    return {
        number: (each.tokens, msgspec.msgpack.encode(each.logprobs), vectors.get(number, b""))
        for number, each in sorted(heard.items())
    }


def system_of(model: Model, *, deaths: Deaths | None = None, **way: Any) -> MediaSystem:
    settings: dict[str, Any] = {"max_model_len": model.longest, "budget": 2048, **way}
    way_ = Way(BLOCK, num_blocks=256, checkpoints=model.checkpoints, **settings)
    return MediaSystem(model.folder, NUMERICS, way_, deaths or Deaths())


@pytest.fixture(scope="module")
def undisturbed(model: Model) -> Results:
    """Each by itself, in one chunk, step by step, with nothing to be found."""
    system = system_of(model, prefix_caching=False, encoder_caching=False, steps=1)
    return results(alone(system, model.asked), system.vectors)


def crowd(model: Model) -> dict[int, Asked]:
    """Ours, and others like them."""
    others = {10 * copy + number: asked for copy in (1, 2) for number, asked in model.asked.items()}
    return {**others, **model.asked}


EVERY = list(
    itertools.product((True, False), (True, False), (16, 64, 2048), ("", "worker", "core"))
)


@pytest.mark.parametrize(("prefix", "encoder", "budget", "death"), EVERY)
def test_the_same_bits(
    model: Model, undisturbed: Results, prefix: bool, encoder: bool, budget: int, death: str
) -> None:
    assert any(vectors for _, _, vectors in undisturbed.values()) or len(undisturbed[1][0]) == 12
    make = functools.partial(
        system_of, model, prefix_caching=prefix, encoder_caching=encoder, budget=budget
    )
    plans = 0
    for dies_at in (0,) if not death else (3, 9):
        system = make(deaths=Deaths(**({death: dies_at} if death else {})))
        system.run(crowd(model))
        found = results(system.heard, system.vectors)
        for number, asked in crowd(model).items():
            assert found[number] == undisturbed[number % 10], (number, asked.wanted)
        assert system.encoded >= 2
        plans = system.plans
    assert plans > 9
    lonely = make(deaths=Deaths(**({death: 4} if death else {})))
    assert results(alone(lonely, model.asked), lonely.vectors) == undisturbed
