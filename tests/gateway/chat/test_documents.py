"""Documents in messages: the text that the model is given, in every API, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.model.pooling_config import PoolingConfig
from penstock_gateway.chat import documents
from tests.gateway.batches.storing import storing
from tests.gateway.fake_engine import FakeEngineClient, welcome
from tests.gateway.media import SeeingEngine, SeeingGateway, data_uri, image, text
from tests.shared.media import pdfs

PDF = "application/pdf"
REPORT = pdfs.pdf("One.", "Two ``` three.")
SHOWN = "r.pdf (2 pages):\n``````\nOne.\n\nTwo ``` three.\n``````\n"
CODE = "def f():\n    return 1\n"
SHOWN_CODE = f"f.py:\n```\n{CODE}\n```\n"


def file(data: bytes = REPORT, name: str | None = "r.pdf", kind: str = PDF) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "file", "file": {"filename": name, "file_data": data_uri(data, kind)}}


def code() -> dict[str, Any]:
    return file(CODE.encode(), "f.py", "text/x-python")


def given(gateway: SeeingGateway, number: int = -1) -> str:
    """The prompt that the engine got, without its blanks, which this tokenizer doesn't keep."""
    ids = gateway.engine.submitted[number][0]
    text = gateway.engine.text.tokenizer.decode(ids, skip_special_tokens=False)
    return text.replace(" ", "")


def same(gateway: SeeingGateway, content: str) -> bool:
    """Whether the last prompt is that of a message with this text."""
    ids = gateway.engine.text.tokenizer.encode(f"user:{content};")
    return bool(gateway.engine.submitted[-1][0] == ids)


def text_gateway(**settings: Any) -> SeeingGateway:
    """A gateway of a model that takes text alone."""
    engine = SeeingEngine(context=4096)
    engine.welcome = msgspec.structs.replace(engine.welcome, media=None)
    return SeeingGateway(engine, **settings)


async def test_a_document_is_a_block_of_text_under_its_name() -> None:
    async with text_gateway() as gateway:
        reply = await gateway.ask(file(), code(), text("Sum up."))
        assert reply.status_code == 200, reply.text
        assert same(gateway, f"{SHOWN}\n{SHOWN_CODE}\nSum up.")
        assert reply.json()["usage"]["prompt_tokens"] == len(gateway.engine.submitted[0][0])
        assert gateway.desk.budget.held == 0
        # The next turn brings it again, and it isn't read again.
        assert gateway.desk.pool.counts.items == 2
        await gateway.ask(file(), code(), text("And?"))
        assert gateway.desk.pool.counts.items == 2


async def test_beside_pictures() -> None:
    async with SeeingGateway(SeeingEngine(context=4096)) as gateway:
        reply = await gateway.ask(image(), code(), text("Like it?"))
        assert reply.status_code == 200, reply.text
        prompt = given(gateway)
        assert prompt.count("<image>") > 1
        assert "return" in prompt


async def test_base64_alone_and_a_name_that_would_leave_its_line() -> None:
    async with text_gateway() as gateway:
        bare = base64.b64encode(CODE.encode()).decode()
        part = {"type": "file", "file": {"filename": "a\n```\nb", "file_data": bare}}
        assert (await gateway.ask(part)).status_code == 200
        assert same(gateway, f"a b:\n```\n{CODE}\n```\n")
        assert (await gateway.ask(file(CODE.encode(), None, "text/plain"))).status_code == 200
        assert same(gateway, f"document:\n```\n{CODE}\n```\n")


async def test_special_tokens_in_it_are_text() -> None:
    async with text_gateway() as gateway:
        tokens = gateway.engine.text.tokenizer
        special = tokens.special_tokens["<image>"]
        assert (await gateway.ask(file(b"<image>", "a<image>b.txt"))).status_code == 200
        assert special not in gateway.engine.submitted[0][0]
        assert "<image>" in given(gateway)


async def test_counting_its_tokens_needs_no_answer() -> None:
    async with text_gateway() as gateway:
        reply = await gateway.ask(file(), path="/tokenize")
        assert reply.status_code == 200, reply.text
        assert reply.json()["tokens"] == gateway.engine.text.tokenizer.encode(f"user:{SHOWN};")


async def test_responses() -> None:
    async with text_gateway() as gateway:
        part = {"type": "input_file", "filename": "r.pdf", "file_data": data_uri(REPORT, PDF)}
        content = [part, {"type": "input_text", "text": "Sum up."}]
        body: dict[str, Any] = {"input": [{"role": "user", "content": content}]}
        reply = await gateway.client.post("/v1/responses", json=body)
        assert reply.status_code == 200, reply.text
        assert same(gateway, f"{SHOWN}\nSum up.")
        content[0] = {**part, "file_data": data_uri(b"%PDF-", PDF)}
        error = (await gateway.client.post("/v1/responses", json=body)).json()["error"]
        assert error["param"] == "input[0].content[0]"
        assert error["message"].startswith("input[0].content[0]: the document is a PDF that is")


def anthropics(source: dict[str, Any], title: str | None = "r.pdf") -> dict[str, Any]:
    content = [
        {"type": "document", "source": source, "title": title},
        {"type": "text", "text": "Sum up."},
    ]
    return {"max_tokens": 8, "model": "m", "messages": [{"role": "user", "content": content}]}


async def test_anthropics_documents() -> None:
    async with text_gateway() as gateway:
        data = base64.b64encode(REPORT).decode()
        model = gateway.engine.welcome.model
        body = anthropics({"type": "base64", "media_type": PDF, "data": data}) | {"model": model}
        reply = await gateway.client.post("/v1/messages", json=body)
        assert reply.status_code == 200, reply.text
        assert same(gateway, f"{SHOWN}\nSum up.")
        source = {"type": "text", "media_type": "text/plain", "data": CODE}
        body = anthropics(source, "f.py") | {"model": model}
        assert (await gateway.client.post("/v1/messages", json=body)).status_code == 200
        assert same(gateway, f"{SHOWN_CODE}\nSum up.")
        body = anthropics({"type": "base64", "media_type": PDF, "data": "JVBERi0="})
        reply = await gateway.client.post("/v1/messages", json=body | {"model": model})
        assert reply.status_code == 400
        assert reply.json()["error"]["message"].startswith("messages[0].content[0]: the document")
        body = anthropics({"type": "text", "data": "a" * 300_000}) | {"model": model}
        reply = await gateway.client.post("/v1/messages", json=body)
        assert "has more than 262144 characters" in reply.json()["error"]["message"]
        body = anthropics({"type": "file"}) | {"model": model}
        reply = await gateway.client.post("/v1/messages", json=body)
        assert "must be of type base64" in reply.json()["error"]["message"]
        assert gateway.desk.budget.held == 0


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "nothing": ({"type": "file"}, 400, "must hold file_data"),
    "an empty file": (file(b""), 400, "the document is empty"),
    "no PDF": (file(b"%PDF-1.7 and no more"), 400, "the document is a PDF that is damaged"),
    "a Word file": (file(b"PK\x03\x04\0\xff"), 400, "neither a PDF nor a text"),
    "encrypted": (file(pdfs.encrypted()), 400, "needs a password"),
    "many pages": (file(pdfs.pdf(*"abcd")), 400, "has 4 pages; at most 3"),
    "large": (file(b"a" * 50_001), 413, "the document's file has more than 50000 bytes"),
    "a url": (
        {"type": "file", "file": {"file_url": "https://example.com/a.pdf"}},
        400,
        "the document has a URL; nothing is fetched here",
    ),
    "a local file": (
        {"type": "file", "file": {"file_url": "file:///etc/passwd"}},
        400,
        "--allowed-local-media-path",
    ),
    "broken base64": (
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,*"}},
        400,
        "base64 is broken",
    ),
    "a number": ({"type": "file", "file": {"file_data": 5}}, 400, "file_data must be a string"),
    "a name": (
        {"type": "file", "file": {"filename": 5, "file_data": "AAAA"}},
        400,
        "filename must be a string",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_documents_are_named(case: str) -> None:
    part, status, words = BAD[case]
    async with text_gateway(max_media_bytes=50_000, max_document_pages=3) as gateway:
        reply = await gateway.ask(text("x"), part)
        error = reply.json()["error"]
        assert reply.status_code == status, error
        assert error["param"] == "messages[0].content[1]"
        assert error["message"].startswith("messages[0].content[1]")
        assert words in error["message"]
        assert gateway.desk.budget.held == 0
        assert not gateway.engine.submitted


async def test_documents_are_bounded_in_number_and_characters() -> None:
    async with text_gateway() as gateway:
        reply = await gateway.ask(*[code()] * 33)
        assert reply.status_code == 400
        assert "33 documents; at most 32" in reply.text
        reply = await gateway.ask(file(b"a" * 64 * 4096 + b"b", kind="text/plain"))
        assert reply.status_code == 400
        assert "has more than 262144 characters" in reply.text
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        # What fits into no context is said as with any text.
        reply = await gateway.ask(file(b"word " * 10_000, kind="text/plain"))
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert gateway.desk.budget.held == 0


async def test_documents_are_bounded_together() -> None:
    async with text_gateway() as gateway:
        parts = [file(letter * 100_000, kind="text/plain") for letter in (b"a", b"b", b"c")]
        error = (await gateway.ask(*parts)).json()["error"]
        assert error["message"].startswith("messages[0].content[2]: the document is too long")
        assert "those before it have more than 262144 characters" in error["message"]
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == "messages[0].content[2]"
        assert gateway.desk.budget.held == 0


@pytest.mark.usefixtures("prepared_here")
async def test_long_documents_become_blocks_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def block(*arguments: Any) -> str:
        threads.add(threading.current_thread())
        return made(*arguments)

    made = documents.block
    monkeypatch.setattr(documents, "block", block)
    async with text_gateway() as gateway:
        long = file(b"word " * 2_500, "a.txt", "text/plain")
        await gateway.ask(long, long)
    assert threads
    assert threading.main_thread() not in threads


async def test_a_bomb_costs_its_own_request_alone() -> None:
    async with text_gateway(media_process_seconds=2.0) as gateway:
        bomb, plain = await asyncio.gather(
            gateway.ask(file(pdfs.long_operators())), gateway.ask(file())
        )
        assert bomb.status_code == 400
        assert "takes longer than 2 s to prepare" in bomb.text
        assert plain.status_code == 200, plain.text


async def test_a_stored_file_is_its_owners(tmp_path: Path) -> None:
    engine = FakeEngineClient()
    async with storing(tmp_path, engine) as gateway:
        own, other = ({"authorization": f"Bearer {name}"} for name in ("own", "other"))
        sent = await gateway.upload(CODE.encode(), own, purpose="user_data")
        assert sent.status_code == 200, sent.text
        part = {"type": "file", "file": {"filename": "f.py", "file_id": sent.json()["id"]}}
        body: dict[str, Any] = {"messages": [{"role": "user", "content": [part]}]}
        path = "/v1/chat/completions"
        reply = await gateway.http.post(path, json=body, headers=own)
        assert reply.status_code == 200, reply.text
        assert SHOWN_CODE.encode() in bytes(engine.submitted[0][0])
        reply = await gateway.http.post(path, json=body, headers=other)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "file_not_found")
        assert reply.json()["error"]["param"] == "messages[0].content[0]"
        part = {"type": "input_file", "filename": "f.py", "file_id": sent.json()["id"]}
        asked = {"input": [{"role": "user", "content": [part]}]}
        reply = await gateway.http.post("/v1/responses", json=asked, headers=own)
        assert reply.status_code == 200, reply.text
        assert SHOWN_CODE.encode() in bytes(engine.submitted[1][0])
        gateway.app.state.service.close()


async def test_a_store_that_cannot_be_read_is_no_missing_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with storing(tmp_path, FakeEngineClient()) as gateway:
        sent = (await gateway.upload(CODE.encode(), purpose="user_data")).json()["id"]
        part = {"type": "file", "file": {"file_id": sent}}
        body: dict[str, Any] = {"messages": [{"role": "user", "content": [part]}]}
        contents = tmp_path / "files" / sent
        contents.unlink()
        reply = await gateway.http.post("/v1/chat/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "file_not_found")
        contents.mkdir()  # Not even root reads it.
        reply = await gateway.http.post("/v1/chat/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "storage_unavailable")
        assert reply.headers["retry-after"] == "30"
        assert "stored contents can't be read" in [each.message for each in caplog.records]
        gateway.app.state.service.close()


async def test_where_there_is_no_chat_they_are_refused() -> None:
    engine = SeeingEngine()
    pooling = PoolingConfig(mode="mean", normalize=True, size=4)
    engine.welcome = welcome(pooling=pooling, pooling_tasks=("embed",))
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.ask(file(), path="/v1/embeddings")
        assert reply.status_code == 400
        assert "documents are taken in chats only" in reply.text
