"""Videos in messages: what is sent to the engine core, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.forms.patches import PatchImages, VideoFrames
from penstock.forms.video import FrameSampling
from penstock.media.prepared import read
from penstock.media.video import prepare_clip, prepare_frames, raw_frames
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock_engine.handlers.media_checks import check_media
from tests.gateway.fake_engine import welcome
from tests.gateway.media import PARTS, SeeingEngine, SeeingGateway, data_uri, image, text
from tests.shared.media.pictures import picture, saved
from tests.shared.media.videos import BOUNDS, VIDEO, movie, noise

TEMPLATE = PARTS.replace(
    "{% else %}{{ c['text'] }}", "{% elif c['type'] == 'video' %}<video>{% else %}{{ c['text'] }}"
).replace("<video>", "<|video_pad|>")
PATCHES = PatchImages(pixels=VIDEO.pixels, min_pixels=28 * 28, max_pixels=56 * 56, patch=7, merge=2)


class WatchingEngine(SeeingEngine):
    """Takes pictures and videos."""

    def __init__(self, video: VideoFrames = VIDEO) -> None:
        super().__init__(TEMPLATE)
        special = self.text.tokenizer.special_tokens
        kinds: dict[Any, KindFacts] = {
            kind: KindFacts(
                preparation=preparation, placeholder=token, token=token, token_id=special[token]
            )
            for kind, preparation, token in (
                ("image", PATCHES, "<image>"),
                ("video", video, "<|video_pad|>"),
            )
        }
        limits = self.welcome.limits
        self.welcome = welcome(media=MediaFacts(kinds=kinds), limits=limits)


def part(url: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}, **more}


def frames_uri(frames: np.ndarray) -> str:
    files = [saved(Image.fromarray(frame)) for frame in frames]
    return "data:video/jpeg;base64," + ",".join(base64.b64encode(f).decode() for f in files)


async def test_frames_go_to_the_engine_core_beside_a_picture() -> None:
    engine, frames = WatchingEngine(), noise(3)
    async with SeeingGateway(engine) as gateway:
        uri = frames_uri(frames)
        reply = await gateway.ask(part(uri), text("ab"), image(data_uri()), part(uri))
        assert reply.status_code == 200, reply.text
        media = engine.media[0]
        assert media is not None
        check_media(media, len(engine.submitted[0][0]))
        assert [item.kind for item in media.items] == ["video", "image"]
        video = media.items[0]
        true, _ = prepare_frames(VIDEO, raw_frames(frames.tobytes(), (44, 30, 2, 1)), BOUNDS)
        arrays = read(engine.prepared[0][video.name])
        assert np.array_equal(arrays["frames"], true["frames"])
        height, width = true["frames"].shape[1:3]
        assert video.grid == (2, height // 14, width // 14)
        assert [span.item for span in media.spans] == [0, 1, 0]
        assert [span.tokens for span in media.spans] == [
            item.rows for item in (video, media.items[1], video)
        ]
        ids = engine.submitted[0][0]
        token = engine.text.tokenizer.special_tokens["<|video_pad|>"]
        assert ids.count(token) == 2 * video.rows
        assert gateway.desk.pool.counts.items == 2
        counted = await gateway.ask(part(uri), path="/tokenize")
        assert counted.json()["count"] == len("user:;") + video.rows
        again = await gateway.ask(part(frames_uri(frames[:2])))
        assert again.status_code == 200, again.text
        assert engine.media[1] is not None
        assert engine.media[1].items[0].name != video.name


async def test_a_file_is_sampled_as_is_asked_for() -> None:
    pytest.importorskip("av")
    engine = WatchingEngine()
    settings = {"media_io_kwargs": '{"video": {"num_frames": 8}}'}
    async with SeeingGateway(engine, **settings) as gateway:
        uri = data_uri(movie(), "video/mp4")
        for changes, count in (({}, 8), ({"num_frames": 4}, 4), ({"fps": 1}, 4)):
            reply = await gateway.ask(part(uri), mm_processor_kwargs=changes)
            assert reply.status_code == 200, reply.text
            media, prepared = engine.media[-1], engine.prepared[-1]
            assert media is not None
            found = read(prepared[media.items[0].name])["frames"]
            sampling = FrameSampling(num_frames=count)
            true, _ = prepare_clip(
                VideoFrames(**{**_fields(VIDEO), "sampling": sampling}), movie(), BOUNDS
            )
            assert np.array_equal(found, true["frames"])
        for changes in ({"num_frames": 9}, {"fps": "x"}, {"max_pixels": 1 << 20}, {"frames": 1}):
            reply = await gateway.ask(part(uri), mm_processor_kwargs=changes)
            assert reply.status_code == 400, changes


def _fields(video: VideoFrames) -> dict[str, Any]:
    return {name: getattr(video, name) for name in video.__struct_fields__}


@pytest.mark.parametrize(
    ("content", "settings", "code", "words"),
    [
        (part("data:video/mp4;base64,AAAA"), {}, "invalid_video", "the video"),
        (part("data:image/png;base64,AAAA"), {}, "invalid_video", "video/… is needed"),
        (part("data:video/jpeg;base64,AAAA,!!"), {}, "invalid_video", "base64 is broken"),
        (part(frames_uri(noise(1)) + ","), {}, "invalid_video", "unsupported format"),
        (part(frames_uri(noise(3))), {"max_video_frames": 2}, "invalid_video", "at most 2"),
        (part(frames_uri(noise(3))), {"max_video_pixels": 99}, "invalid_video", "at most 99"),
        (part("https://example.com/a.mp4"), {}, "invalid_video", "allowed-media-domains"),
        ({"type": "video_url"}, {}, "missing_required_parameter", "video_url is missing"),
        (
            part(frames_uri(noise(1))),
            {"limit_mm_per_prompt": '{"video": 0}'},
            "too_many_videos",
            "at most 0",
        ),
    ],
)
async def test_a_video_beyond_a_limit_or_unreadable_is_a_400(
    content: dict[str, Any], settings: dict[str, Any], code: str, words: str
) -> None:
    async with SeeingGateway(WatchingEngine(), **settings) as gateway:
        reply = await gateway.ask(content)
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["code"], error["param"][:12]) == (code, "messages[0]."), error
        assert words in error["message"], error
        assert gateway.desk.budget.held == 0


async def test_a_model_of_pictures_takes_no_videos() -> None:
    async with SeeingGateway() as gateway:
        reply = await gateway.ask(part(frames_uri(noise(1))))
        assert reply.status_code == 400
        assert "takes text and pictures only" in reply.json()["error"]["message"]
        assert (await gateway.ask(image(data_uri(saved(picture()))))).status_code == 200
