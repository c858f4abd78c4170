"""Pictures in the library's prompts and conversations, without an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.client import ModelText
from penstock.config.settings import MediaSettings
from penstock.errors import InvalidRequest
from penstock.llm.keywords import engine_config
from penstock.llm.media_prompts import library_chat, library_prompt, without_media
from penstock.llm.sounds_given import source_of
from penstock.media.desk import MediaDesk
from penstock.media.prepared import read
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from penstock_engine.handlers.media_checks import check_media
from tests.gateway.media import PARTS, data_uri
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.pictures import PREPARATION, picture, saved

ROWS = PREPARATION.rows


@pytest.fixture(scope="module")
def text() -> ModelText:
    tokens = Tokenizer.from_bytes(tokenizer().to_str().encode(), add_bos=False, bos_token_id=None)
    image = tokens.special_tokens["<image>"]
    facts = KindFacts(
        preparation=PREPARATION, placeholder="<image>", token="<image>", token_id=image
    )
    return ModelText(tokens, ChatTemplate(PARTS, tokens), MediaFacts(kinds={"image": facts}))


@pytest.fixture
async def desk() -> AsyncIterator[MediaDesk]:
    desk = MediaDesk(MediaSettings())
    yield desk
    desk.close()


def ids_of(text: ModelText, filled: str) -> list[int]:
    return text.tokenizer.encode(filled.replace("<image>", "<image>" * ROWS))


GREY = np.asarray(picture().convert("L"))


def forms(folder: Path) -> list[Any]:
    """One picture in every form that a caller may have it in."""
    file = folder / "a.png"
    file.write_bytes(saved(picture()))
    array = np.asarray(picture())
    return [
        picture(),
        array,
        array.transpose(2, 0, 1),
        file,
        str(file),
        saved(picture()),
        data_uri(),
    ]


async def test_every_form_gives_the_same_pixels(
    text: ModelText, desk: MediaDesk, tmp_path: Path
) -> None:
    wanted = PREPARATION.prepare(picture())["pixels"]
    pictures = forms(tmp_path)
    prompt = {"prompt": "a<image>" * len(pictures), "multi_modal_data": {"image": pictures}}
    with desk.lease("") as lease:
        ids, media = await library_prompt(prompt, text).ready(desk, text, lease)
        assert lease is not None
        assert ids == ids_of(text, prompt["prompt"])
        assert media is not None
        assert [media.media.items[span.item].rows for span in media.media.spans] == [ROWS] * 7
        check_media(media.media, len(ids))  # Of a picture's file, and of its pixels.
        assert len(media.media.items) == 2
        for item in media.media.items:
            assert np.array_equal(read(media.prepared[item.name])["pixels"], wanted)
        assert desk.budget.held == len(pictures) * media.media.items[0].size
    assert desk.budget.held == 0


async def test_modes_of_pillow_and_grey_arrays(text: ModelText, desk: MediaDesk) -> None:
    for given in (picture().convert("L"), GREY, picture().convert("P"), picture().convert("RGBA")):
        prompt = {"prompt": "<image>", "multi_modal_data": {"image": given}}
        with desk.lease("") as lease:
            _, media = await library_prompt(prompt, text).ready(desk, text, lease)
        assert media is not None
        rgb = given.convert("RGB") if isinstance(given, Image.Image) else picture().convert("L")
        wanted = PREPARATION.prepare(rgb.convert("RGB"))["pixels"]
        (data,) = media.prepared.values()
        assert np.array_equal(read(data)["pixels"], wanted)


async def test_prompts_that_are_tokenised(text: ModelText, desk: MediaDesk) -> None:
    prompt = {
        "prompt_token_ids": text.tokenizer.encode("xy<image>z"),
        "multi_modal_data": {"image": [picture()]},
        "multi_modal_uuids": {"image": ["one"]},
    }
    with desk.lease("") as lease:
        ids, media = await library_prompt(prompt, text).ready(desk, text, lease)
        assert ids == ids_of(text, "xy<image>z")
        again = {"prompt": "<image>", "multi_modal_uuids": {"image": "one"}}
        _, same = await library_prompt(again, text).ready(desk, text, lease)
    assert media is not None
    assert same is not None
    assert media.prepared == same.prepared


async def test_conversations(text: ModelText, desk: MediaDesk, tmp_path: Path) -> None:
    file = tmp_path / "b.png"
    file.write_bytes(saved(picture()))
    parts = [
        {"type": "text", "text": "xy"},
        {"type": "image_pil", "image_pil": picture()},
        {"type": "image", "image": picture()},
        {"type": "image", "path": str(file)},
        {"type": "image_url", "image_url": {"url": data_uri()}},
        {"type": "text", "text": "<image>"},
    ]
    chat = library_chat(
        [{"role": "user", "content": parts}, {"role": "assistant", "content": "z"}],
        text,
        add_generation_prompt=False,
    )
    with desk.lease("") as lease:
        ids, media = await chat.ready(desk, text, lease)
    assert media is not None
    assert len(media.media.spans) == 4
    plain = text.tokenizer.encode("<image>", parse_special=False)
    wanted = ids_of(text, "user:xy<image><image><image><image>")
    assert ids[: len(wanted) + len(plain)] == wanted + plain


def test_prompts_without_media_are_as_before(text: ModelText) -> None:
    for prompt in ("xyz", {"prompt": "xyz"}, {"prompt": "xyz", "multi_modal_data": {}}):
        found = library_prompt(prompt, text)
        assert (found.text, found.prompt_token_ids) == ("xyz", text.tokenizer.encode("xyz"))
        assert found.finish is None


BAD: list[tuple[Any, str]] = [
    ({"multi_modal_data": {"smell": [1]}}, "supported are image, audio"),
    ({"multi_modal_data": [1]}, "must be a dict"),
    ({"multi_modal_data": {"image": 5}}, r'multi_modal_data\["image"\]\[0\] is int'),
    ({"multi_modal_data": {"image": [None]}}, "no uuid"),
    ({"multi_modal_data": {"image": np.zeros((2, 2, 3))}}, "float64"),
    ({"multi_modal_data": {"image": np.zeros((2, 2, 4), np.uint8)}}, r"\[2, 2, 4\]"),
    ({"multi_modal_data": {"image": np.zeros((0, 2, 3), np.uint8)}}, "needed"),
    ({"multi_modal_data": {"image": picture().convert("F")}}, "range isn't known"),
    ({"multi_modal_data": {"image": "x"}, "multi_modal_uuids": {"image": [1]}}, "must be a string"),
    ({"multi_modal_data": {"image": "x"}, "multi_modal_uuids": {"image": ["a", "b"]}}, "2 names"),
    ({"multi_modal_data": {"image": "x"}, "mm_processor_kwargs": 5}, "must be a dict"),
    ({"multi_modal_data": {"image": "x"}, "colour": 5}, "no field 'colour'"),
]


@pytest.mark.parametrize(("more", "words"), BAD)
def test_bad_prompts_say_why(more: dict[str, Any], words: str, text: ModelText) -> None:
    with pytest.raises(InvalidRequest, match=words):
        library_prompt({"prompt": "<image>", **more}, text)


async def test_what_is_found_out_later(text: ModelText, desk: MediaDesk, tmp_path: Path) -> None:
    cases = (
        ("<image><image>", picture(), "one for each"),
        ("<image>", tmp_path / "none.png", "isn't a readable file"),
        ("<image>", "https://example.com/a.png", "nothing is fetched here"),
        ("<image>", b"no picture", "unsupported format"),
    )
    for prompt, given, words in cases:
        found = library_prompt({"prompt": prompt, "multi_modal_data": {"image": given}}, text)
        with desk.lease("") as lease, pytest.raises(InvalidRequest, match=words):
            await found.ready(desk, text, lease)
    found = library_prompt(
        {
            "prompt": "<image>",
            "multi_modal_data": {"image": picture()},
            "mm_processor_kwargs": {"max_pixels": 5},
        },
        text,
    )
    with desk.lease("") as lease, pytest.raises(InvalidRequest, match="can't be changed"):
        await found.ready(desk, text, lease)


def test_models_without_eyes(text: ModelText) -> None:
    blind = ModelText(text.tokenizer, text.template)
    with pytest.raises(InvalidRequest, match="takes text only"):
        library_prompt({"prompt": "x", "multi_modal_data": {"image": picture()}}, blind)
    message = {"role": "user", "content": [{"type": "image_pil", "image_pil": picture()}]}
    with pytest.raises(InvalidRequest, match="takes text only"):
        library_chat([message], blind, add_generation_prompt=True)


def test_beam_search_takes_no_pictures(text: ModelText) -> None:
    prompt = {"prompt": "<image>", "multi_modal_data": {"image": picture()}}
    with pytest.raises(InvalidRequest, match="can't be combined"):
        without_media(library_prompt(prompt, text), "beam search")


def test_settings_under_vllms_names() -> None:
    config = engine_config(
        {
            "limit_mm_per_prompt": {"image": 2},
            "mm_processor_kwargs": {"max_pixels": 100},
            "allowed_media_domains": ["a.example", "b.example"],
            "allowed_local_media_path": "/tmp",
        }
    )
    assert config.media.limit_mm_per_prompt == '{"image":2}'
    assert config.media.mm_processor_kwargs == '{"max_pixels":100}'
    assert config.media.allowed_media_domains == "a.example,b.example"
    assert engine_config({"limit_mm_per_prompt": {}}) == engine_config({})


def test_a_source_of_a_string() -> None:
    assert source_of("data:x", "here").url == "data:x"
    assert source_of("HTTP://x", "here").url == "HTTP://x"
    assert source_of("a/b.png", "here").path == Path("a/b.png")
