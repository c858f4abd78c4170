"""Pictures in messages: what is sent to the engine core, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import numpy as np
import pytest

from penstock.config.settings import GatewayConfig, MediaSettings
from penstock.media.prepared import read
from penstock_engine.handlers.media_checks import check_media
from testing.processes import freeze
from tests.gateway.fake_engine import MODEL, FakeEngineClient
from tests.gateway.media import (
    PARTS,
    ROWS,
    SeeingEngine,
    SeeingGateway,
    data_uri,
    image,
    text,
)
from tests.shared.media.pictures import PREPARATION, picture, saved

ONLY_PARTS = PARTS.replace("m['content'] is string", "false")
ONLY_TEXTS = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }};{% endfor %}"


def ids_of(engine: SeeingEngine, filled: str) -> list[int]:
    """Token ids of a filled template, in which each <image> is repeated for its rows."""
    return engine.text.tokenizer.encode(filled.replace("<image>", "<image>" * ROWS))


@pytest.mark.parametrize("template", [PARTS, ONLY_PARTS])
async def test_a_picture_goes_to_the_engine_core(template: str) -> None:
    engine = SeeingEngine(template)
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.ask(text("xy"), image(), text("c"))
        assert reply.status_code == 200, reply.text
        ids = ids_of(engine, "user:xy<image>c;")
        assert engine.submitted[0][0] == ids
        assert reply.json()["usage"]["prompt_tokens"] == len(ids)
        media, prepared = engine.media[0], engine.prepared[0]
        assert media is not None
        (item,), (span,) = media.items, media.spans
        assert (span.item, span.offset, span.tokens, span.first) == (0, len("user:xy"), ROWS, 0)
        assert (item.kind, item.rows, item.grid) == ("image", ROWS, ())
        data = prepared[item.name]
        assert (item.size, item.digest) == (len(data), hashlib.sha256(data).hexdigest())
        pixels = PREPARATION.prepare(picture())["pixels"]
        assert np.array_equal(read(data)["pixels"], pixels)
        assert gateway.desk.budget.held == 0


async def test_several_pictures_keep_their_order() -> None:
    engine = SeeingEngine()
    files = [data_uri(saved(picture(seed=seed))) for seed in (1, 2, 1)]
    async with SeeingGateway(engine) as gateway:
        await gateway.ask(image(files[0]), text("a"), image(files[1]), image(files[2]))
        media = engine.media[0]
        assert media is not None
        assert len({item.name for item in media.items}) == 2
        check_media(media, len(engine.submitted[0][0]))  # The engine core's own checks.
        offset = len("user:")
        assert [span.offset for span in media.spans] == [
            offset,
            offset + ROWS + 1,
            offset + 2 * ROWS + 1,
        ]
        assert [span.item for span in media.spans] == [0, 1, 0]
        assert gateway.desk.pool.counts.items == 2


async def test_a_picture_of_an_earlier_turn_comes_again() -> None:
    engine = SeeingEngine()
    async with SeeingGateway(engine) as gateway:
        turns = [("user", [image()]), ("assistant", "a"), ("user", [text("b"), image()])]
        messages = [{"role": role, "content": content} for role, content in turns]
        reply = await gateway.client.post("/v1/chat/completions", json={"messages": messages})
        assert reply.status_code == 200, reply.text
        media = engine.media[0]
        assert media is not None
        assert [(span.item, span.first) for span in media.spans] == [(0, 0), (0, 0)]
        check_media(media, len(engine.submitted[0][0]))
        assert list(engine.prepared[0]) == [item.name for item in media.items]


async def test_a_text_is_sent_as_before() -> None:
    engine = SeeingEngine(ONLY_PARTS)
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "abc"}]}
        )
        assert reply.status_code == 200
        assert engine.submitted[0][0] == engine.text.tokenizer.encode("user:abc;")
        assert engine.media == [None]
        assert not gateway.desk.pool.pids


async def test_a_template_of_texts_alone() -> None:
    engine = SeeingEngine(ONLY_TEXTS)
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.ask(text("ab"), image(), text("c"))
        assert reply.status_code == 200, reply.text
        assert engine.submitted[0][0] == ids_of(engine, "user:ab\n<image>\nc;")


async def test_nobody_can_write_a_placeholder() -> None:
    engine = SeeingEngine()
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.ask(text("<image>"), image(), text("<image><im"), text("age>"))
        assert reply.status_code == 200, reply.text
        media, ids = engine.media[0], engine.submitted[0][0]
        assert media is not None
        token = engine.welcome.media.kinds["image"].token_id
        assert [at for at, each in enumerate(ids) if each == token] == list(
            range(media.spans[0].offset, media.spans[0].offset + ROWS)
        )
        assert (await gateway.ask(text("<image>"))).status_code == 200
        assert token not in engine.submitted[1][0]


async def test_streams_and_failures_give_back_what_they_held() -> None:
    async with SeeingGateway() as gateway:
        reply = await gateway.ask(image(), stream=True)
        assert reply.status_code == 200
        assert "[DONE]" in reply.text
        assert (await gateway.ask(image(), max_tokens=100_000)).status_code == 400
        assert (await gateway.ask(image(), image("data:,x"))).status_code == 400
        assert gateway.desk.budget.held == 0
        assert not gateway.desk.budget.by_tenant


async def test_many_requests_prepare_a_picture_once() -> None:
    async with SeeingGateway() as gateway:
        files = [data_uri(saved(picture(seed=seed))) for seed in range(4)]
        work = [gateway.ask(image(files[number % 4])) for number in range(16)]
        replies = await asyncio.gather(*work)
        assert [reply.status_code for reply in replies] == [200] * 16
        assert gateway.desk.pool.counts.items == 4
        assert (await gateway.ask(image(files[0]))).status_code == 200
        assert gateway.desk.pool.counts.items == 4
        assert gateway.desk.cache.hits >= 1
        shown = (await gateway.client.get("/metrics")).text
        assert 'penstock:media_items_total{model_name="org/tiny-model"} 17.0' in shown
        assert 'penstock:media_prepared_total{model_name="org/tiny-model"} 4.0' in shown


async def test_a_uuid_stands_for_what_was_sent() -> None:
    engine = SeeingEngine()
    async with SeeingGateway(engine) as gateway:
        assert (await gateway.ask(image(uuid="cat"))).status_code == 200
        alone = {"type": "image_url", "image_url": None, "uuid": "cat"}
        assert (await gateway.ask(alone)).status_code == 200
        assert engine.media[0] == engine.media[1]
        assert engine.prepared[0] == engine.prepared[1]
        reply = await gateway.ask(text("x"), {**alone, "uuid": "dog"})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "messages[0].content[1]"
        assert "send it again" in reply.json()["error"]["message"]
        other = {"Authorization": "Bearer another"}
        body = {"messages": [{"role": "user", "content": [alone]}]}
        reply = await gateway.client.post("/v1/chat/completions", json=body, headers=other)
        assert reply.status_code == 400


async def test_tokenize_counts_pictures() -> None:
    engine = SeeingEngine()
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.ask(text("ab"), image(), path="/tokenize")
        assert reply.json()["tokens"] == ids_of(engine, "user:ab<image>;")
        assert not engine.submitted
        assert gateway.desk.budget.held == 0


async def test_responses_take_pictures() -> None:
    engine = SeeingEngine()
    async with SeeingGateway(engine) as gateway:
        part = {"type": "input_image", "image_url": data_uri(), "detail": "low"}
        said = {"type": "input_text", "text": "ab"}
        body = {"input": [{"role": "user", "content": [said, part]}]}
        reply = await gateway.client.post("/v1/responses", json=body)
        assert reply.status_code == 200, reply.text
        assert engine.submitted[0][0] == ids_of(engine, "user:ab<image>;")
        body["input"][0]["content"][1] = {**part, "image_url": "data:image/png;base64,AAAA"}
        error = (await gateway.client.post("/v1/responses", json=body)).json()["error"]
        assert error["param"] == "input[0].content[1]"
        assert error["message"].startswith(
            "input[0].content[1]: the picture has an unsupported format"
        )
        body["input"][0]["content"][1] = {**part, "file_id": "file-1"}
        error = (await gateway.client.post("/v1/responses", json=body)).json()["error"]
        assert error["param"] == "input[0].content[1].file_id"


async def test_a_file_is_what_its_uri_says() -> None:
    engine = SeeingEngine()
    async with SeeingGateway(engine) as gateway:
        shown = {"type": "file", "file": {"file_data": data_uri(), "filename": "a.png"}}
        assert (await gateway.ask(image(), shown)).status_code == 200
        assert engine.submitted[0][0] == ids_of(engine, "user:<image><image>;")
        assert len(engine.media[0].items) == 1
        part = {"type": "input_file", "file_data": data_uri(), "filename": "a.png"}
        body = {"input": [{"role": "user", "content": [part]}]}
        reply = await gateway.client.post("/v1/responses", json=body)
        assert reply.status_code == 200, reply.text
        assert engine.submitted[1][0] == ids_of(engine, "user:<image>;")


LOOK = {"name": "look", "arguments": "{}"}
SHOWN_BY_TOOLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Q"},
                {"role": "assistant", "tool_calls": [{"id": "1", "function": LOOK}]},
                {"role": "tool", "tool_call_id": "1", "content": [text("Here:"), image()]},
            ]
        },
        "user:Q;assistant:CALL;tool:Here:<image>;",
    ),
    "responses": (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": "Q"},
                {"type": "function_call", "call_id": "1", **LOOK},
                {
                    "type": "function_call_output",
                    "call_id": "1",
                    "output": [
                        {"type": "input_text", "text": "Here:"},
                        {"type": "input_image", "image_url": data_uri()},
                    ],
                },
            ]
        },
        "user:Q;assistant:CALL;tool:Here:;user:<image>;",
    ),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 8,
            "messages": [
                {"role": "user", "content": "Q"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "1",
                            "is_error": True,
                            "content": [
                                {"type": "text", "text": "Here:"},
                                {
                                    "type": "image",
                                    "source": {
                                        "type": "base64",
                                        "media_type": "image/png",
                                        "data": data_uri().partition(",")[2],
                                    },
                                },
                            ],
                        }
                    ],
                },
            ],
        },
        "user:Q;assistant:CALL;tool:Here:;user:<image>;",
    ),
    "ollama": (
        "/api/chat",
        {
            "stream": False,
            "messages": [
                {"role": "user", "content": "Q"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "look", "arguments": {}}}],
                },
                {
                    "role": "tool",
                    "tool_name": "look",
                    "content": "Here:",
                    "images": [data_uri().partition(",")[2]],
                },
            ],
        },
        "user:Q;assistant:CALL;tool:<image>Here:;",
    ),
}


@pytest.mark.parametrize("api", SHOWN_BY_TOOLS)
async def test_a_picture_that_a_tool_shows(api: str) -> None:
    path, body, filled = SHOWN_BY_TOOLS[api]
    engine = SeeingEngine()
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.client.post(path, json={"model": MODEL, **body})
        assert reply.status_code == 200, reply.text
    filled = filled.replace("CALL", '{"name": "look", "arguments": {}}')
    assert engine.submitted[0][0] == ids_of(engine, filled)
    assert len(engine.media[0].items) == 1


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "no url": ({"type": "image_url"}, 400, "is missing"),
    "an empty object": ({"type": "image_url", "image_url": {}}, 400, "is missing"),
    "a number": ({"type": "image_url", "image_url": 5}, 400, "must be a URL"),
    "a list": ({"type": "image_url", "image_url": {"url": ["x"]}}, 400, "must be a URL"),
    "a detail": (image(detail="much"), 400, "detail"),
    "a uuid of a number": (image(uuid=7), 400, "uuid must be a string"),
    "a long uuid": (image(uuid="x" * 129), 400, "1 to 128"),
    "an empty uri": (image("data:image/png;base64,"), 400, "unsupported format"),
    "no uri": (image("data:image/png"), 400, "data: URI"),
    "no base64": (image("data:image/png,abc"), 400, "isn't base64"),
    "broken base64": (image("data:image/png;base64,A*=="), 400, "base64 is broken"),
    "another type": (image("data:text/html;base64,AAAA"), 400, "text/html"),
    "svg": (image(data_uri(b"<svg/>", "image/svg+xml")), 400, "unsupported format; supported: PNG"),
    "cut off": (image(data_uri(saved(picture())[:-300])), 400, "damaged"),
    "a url": (image("https://example.com/a.png"), 400, "nothing is fetched here"),
    "a local file": (image("file:///etc/passwd"), 400, "--allowed-local-media-path"),
    "ftp": (image("ftp://example.com/a.png"), 400, "neither http nor https"),
    "a path": (image("/etc/passwd"), 400, "neither http nor https"),
    "audio": ({"type": "input_audio", "input_audio": {}}, 400, "format is"),
    "video": (
        {"type": "video_url", "video_url": {"url": "x"}},
        400,
        "takes text and pictures only",
    ),
    "a file without data": ({"type": "file", "file": {}}, 400, "must hold file_data"),
    "a kept file": ({"type": "file", "file": {"file_id": "file-1"}}, 400, "a stored file"),
    "large": (image(data_uri(b"x" * 50_001)), 413, "more than 50000 bytes"),
    "many pixels": (image(data_uri(saved(picture(101, 100)))), 400, "at most 10000"),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_pictures_are_named(case: str) -> None:
    part, status, words = BAD[case]
    async with SeeingGateway(max_media_bytes=50_000, max_media_pixels=10_000) as gateway:
        reply = await gateway.ask(text("x"), part)
        error = reply.json()["error"]
        assert reply.status_code == status, error
        assert error["param"].startswith("messages[0].content[1]")
        assert "messages[0].content[1]" in error["message"]
        assert words in error["message"]
        assert gateway.desk.budget.held == 0
        assert not gateway.engine.submitted


async def test_bounds_on_many() -> None:
    two = saved(picture())
    async with SeeingGateway(
        limit_mm_per_prompt='{"image": 2}', max_media_request_bytes=3 * len(two)
    ) as gateway:
        reply = await gateway.ask(image(), image(), image())
        assert reply.status_code == 400
        assert "at most 2 are accepted (--limit-mm-per-prompt)" in reply.text
        assert reply.json()["error"]["param"] == "messages[0].content[2]"
        assert (await gateway.ask(image(), image())).status_code == 200
    async with SeeingGateway(max_media_request_bytes=2 * len(two) - 1) as gateway:
        assert (await gateway.ask(image())).status_code == 200
        reply = await gateway.ask(image(), image())
        assert reply.status_code == 413
        assert "--max-media-request-bytes" in reply.text


def test_the_largest_picture_fits_into_a_body() -> None:
    room_for_text = 1 << 20
    picture = len(data_uri(bytes(MediaSettings().max_media_bytes)))
    assert picture + room_for_text <= GatewayConfig().max_body_bytes


async def test_media_in_flight_are_bounded() -> None:
    async with SeeingGateway(max_media_tenant_mib=1, max_media_in_flight_mib=1) as gateway:
        with gateway.desk.lease("somebody") as lease:
            lease.take(1 << 20, "x")
            reply = await gateway.ask(image())
            assert reply.status_code == 429
            assert reply.headers["retry-after"] == "1"
            assert "--max-media-in-flight-mib" in reply.text
        assert (await gateway.ask(image())).status_code == 200
        with gateway.desk.lease("") as lease:
            lease.take(1 << 20, "x")
            assert "--max-media-tenant-mib" in (await gateway.ask(image())).text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_the_wait_for_a_picture(stream: bool) -> None:
    async with SeeingGateway(media_processes=1) as gateway:
        assert (await gateway.ask(image())).status_code == 200
        (pid,) = gateway.desk.pool.pids
        freeze(pid)
        other = image(data_uri(saved(picture(seed=5))))
        reply = await gateway.ask(other, deadline_ms=500, stream=stream)
        assert reply.status_code == 408, reply.text
        assert "before its pictures were prepared" in reply.text
        assert gateway.desk.budget.held == 0
        assert (await gateway.ask(other, deadline_ms=60_000)).status_code == 200


async def test_what_would_cut_a_picture_is_refused() -> None:
    async with SeeingGateway() as gateway:
        for more in ({"truncate_prompt_tokens": 5}, {"use_beam_search": True, "n": 2}):
            reply = await gateway.ask(image(), **more)
            assert reply.status_code == 400
            assert "can't be combined with pictures" in reply.text


async def test_a_template_that_shows_no_picture() -> None:
    engine = SeeingEngine(PARTS.replace("<image>", ""))
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.ask(image())
        assert reply.status_code == 400
        assert "doesn't show each picture" in reply.text


async def test_a_model_without_eyes_says_so() -> None:
    async with SeeingGateway(without_eyes()) as gateway:
        reply = await gateway.ask(text("x"), image())
        assert reply.status_code == 400
        assert "takes text only" in reply.text
        assert reply.json()["error"]["param"] == "messages[0].content[1]"


def without_eyes() -> FakeEngineClient:
    engine = SeeingEngine()
    engine.welcome = FakeEngineClient().welcome
    return engine
