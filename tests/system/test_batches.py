"""Batches through the whole system: every line answered once, whoever dies meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIConnectionError, InternalServerError, OpenAI
from openai.types.responses import Response

from penstock_receipts.statement import read_receipts
from penstock_receipts.verify import SignedReceipt
from testing.processes import freeze
from testing.serving import Server, wait_until
from tests.thinning import part

pytestmark = [pytest.mark.timeout(900)]

LINES = part(2000, 0.1)
KILLS = part(5, 0.2)
FLAGS = ("--num-kv-blocks", "512", "--stored-response-hours", "1")
TEMPLATE = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}assistant:"
VICTIMS = ("batches", "engine", "worker 0", "gateway 0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def serving(tiny_model: str, folder: Path) -> Iterator[Server]:
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    flags = ["--data-dir", str(folder / "data"), "--chat-template", str(template)]
    flags += ["--receipt-key-file", str(folder / "key.pem")]
    with Server(tiny_model, *flags, *FLAGS) as server:
        yield server


@pytest.fixture
def server(serving: Server) -> Server:
    wait_until(serving.ready)
    return serving


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=240, max_retries=8) as client:
        yield client


def body(server: Server, number: int) -> dict[str, Any]:
    return {
        "model": server.model,
        "prompt": f"Line {number} of the batch says",
        "max_tokens": 12 + number % 7,
        "temperature": 0.8,
        "seed": number,
        "ignore_eos": True,
        "logprobs": 1,
    }


def lines_of(server: Server, count: int) -> bytes:
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": body(server, number),
        }
        for number in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def begin(client: OpenAI, content: bytes, endpoint: str = "/v1/completions") -> str:
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
        metadata={"for": "a test"},
    )
    assert (batch.status, batch.metadata) == ("validating", {"for": "a test"})
    return batch.id


def ended(client: OpenAI, batch_id: str) -> Any:
    def over() -> bool:
        nonlocal batch
        batch = client.batches.retrieve(batch_id)
        return batch.status in ("completed", "failed", "cancelled", "expired")

    batch: Any = None
    wait_until(over, timeout=600)
    return batch


def results(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def choice_of(result: dict[str, Any]) -> dict[str, Any]:
    assert result["response"]["status_code"] == 200, result
    return result["response"]["body"]["choices"][0]


def test_receipts_of_a_batch_are_signed_together(server: Server, client: OpenAI) -> None:
    lines = [json.loads(line) for line in lines_of(server, 5).splitlines()]
    for line in lines[1:]:
        line["body"]["penstock_receipt"] = "1"
    batch_id = begin(client, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    file_id = ended(client, batch_id).output_file_id
    found = [SignedReceipt(each) for each in read_receipts(client.files.content(file_id).content)]
    told = [{check.what: check for check in receipt.checks()}["batch"] for receipt in found]
    assert [check.standing for check in told] == ["equal"] * 4
    for number, check in enumerate(told):
        assert f"receipt {number} of the 4 of {batch_id}" in check.detail


def test_every_line_is_answered_once_whoever_dies(server: Server, client: OpenAI) -> None:
    alone = [
        httpx.post(f"{server.url}/v1/completions", json=body(server, number), timeout=240)
        for number in range(0, LINES, 16)
    ]
    batch_id = begin(client, lines_of(server, LINES))
    for victim in itertools.chain(*[VICTIMS] * KILLS):
        pid = server.child(victim)
        before = done_of(client, batch_id)
        wait_until(
            lambda before=before: (
                done_of(client, batch_id) > before or ended_already(client, batch_id)
            )
        )
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda victim=victim, pid=pid: (
                server.children().get(f"penstock: {victim}") not in (None, pid)
            )
        )
        wait_until(server.ready)
        if ended_already(client, batch_id):
            break
    batch = ended(client, batch_id)
    assert batch.status == "completed"
    wrong = results(client, batch.error_file_id) if batch.error_file_id else []
    assert wrong == []
    assert (batch.request_counts.total, batch.request_counts.completed) == (LINES, LINES)
    answers = results(client, batch.output_file_id)
    assert [each["custom_id"] for each in answers] == [f"line-{n}" for n in range(LINES)]
    for answer, single in zip(answers[::16], alone, strict=True):
        assert choice_of(answer) == single.json()["choices"][0]


@pytest.mark.long
def test_a_batch_goes_on_when_its_process_stands_still_for_good(
    server: Server, client: OpenAI
) -> None:
    batch_id = begin(client, lines_of(server, 300))
    wait_until(lambda: done_of(client, batch_id) > 0)
    pid = server.child("batches")
    freeze(pid)
    assert not ended_already(client, batch_id)
    batch = ended(client, batch_id)
    assert (batch.status, batch.error_file_id) == ("completed", None)
    answers = results(client, batch.output_file_id)
    assert [each["custom_id"] for each in answers] == [f"line-{n}" for n in range(300)]
    assert server.child("batches") != pid


def test_lines_that_a_pause_has_aborted_are_done_again(server: Server, client: OpenAI) -> None:
    batch_id = begin(client, lines_of(server, 100))
    for _ in range(3):
        before = done_of(client, batch_id)
        wait_until(
            lambda before=before: (
                done_of(client, batch_id) > before or ended_already(client, batch_id)
            )
        )
        for path in ("pause", "resume"):
            assert httpx.post(f"{server.url}/{path}", timeout=60).status_code == 200
    batch = ended(client, batch_id)
    assert (batch.status, batch.error_file_id) == ("completed", None)
    answers = results(client, batch.output_file_id)
    assert [each["custom_id"] for each in answers] == [f"line-{n}" for n in range(100)]
    assert {choice_of(each)["finish_reason"] for each in answers} == {"length"}


def done_of(client: OpenAI, batch_id: str) -> int:
    """Lines that have an answer; one more than all where the batch has ended."""
    batch = client.batches.retrieve(batch_id)
    counts = batch.request_counts
    assert counts is not None
    return counts.completed + counts.failed + (batch.status == "completed")


def ended_already(client: OpenAI, batch_id: str) -> bool:
    return client.batches.retrieve(batch_id).status not in ("validating", "in_progress")


def test_good_and_bad_lines(server: Server, client: OpenAI) -> None:
    content = lines_of(server, 3).replace(b'"max_tokens": 13', b'"max_tokens": -2')
    batch = ended(client, begin(client, content))
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    assert [each["custom_id"] for each in results(client, batch.output_file_id)] == [
        "line-0",
        "line-2",
    ]
    (wrong,) = results(client, batch.error_file_id)
    assert wrong["custom_id"] == "line-1"
    assert wrong["response"]["status_code"] == 400
    assert wrong["response"]["body"]["error"]["param"] == "max_tokens"
    names = {file.id: file.purpose for file in client.files.list()}
    assert names[batch.output_file_id] == "batch_output"
    assert names[batch.error_file_id] == "batch_error"
    assert client.files.delete(batch.output_file_id).deleted
    assert batch.output_file_id not in [file.id for file in client.files.list()]


def test_a_batch_that_is_cancelled_keeps_what_it_has(server: Server, client: OpenAI) -> None:
    long = lines_of(server, 4000)
    batch_id = begin(client, long)
    wait_until(lambda: done_of(client, batch_id) > 0)
    assert client.batches.cancel(batch_id).status == "cancelling"
    batch = ended(client, batch_id)
    assert batch.status == "cancelled"
    found = results(client, batch.output_file_id)
    assert len(found) == batch.request_counts.completed < 4000
    assert len({each["custom_id"] for each in found}) == len(found)


def test_what_is_not_answered_in_time_is_told_of(server: Server, client: OpenAI) -> None:
    file = client.files.create(file=("requests.jsonl", lines_of(server, 2000)), purpose="batch")
    batch = ended(
        client,
        client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="1s",  # type: ignore[arg-type]
        ).id,
    )
    assert batch.status == "expired"
    told = results(client, batch.error_file_id)
    assert {each["error"]["code"] for each in told} == {"batch_expired"}
    done = results(client, batch.output_file_id) if batch.output_file_id else []
    assert {each["custom_id"] for each in (*told, *done)} == {f"line-{n}" for n in range(2000)}
    assert len(told) + len(done) == 2000


def test_others_do_not_wait_for_it(server: Server, client: OpenAI) -> None:
    """A request that somebody waits for is served while a batch has thousands of lines to go."""
    batch_id = begin(client, lines_of(server, 4000))
    wait_until(lambda: done_of(client, batch_id) > 0)
    for number in range(8):
        answer = httpx.post(f"{server.url}/v1/completions", json=body(server, number), timeout=60)
        assert answer.status_code == 200
    assert done_of(client, batch_id) < 4000
    client.batches.cancel(batch_id)
    ended(client, batch_id)


def test_responses_outlive_every_process(server: Server, client: OpenAI) -> None:
    """And what goes on from one is as if all had been sent."""
    asked = {"model": server.model, "max_output_tokens": 12, "temperature": 0}
    first = client.responses.create(input="The river is", **asked)
    for victim in ("gateway 0", "engine"):
        pid = server.child(victim)
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda victim=victim, pid=pid: (
                server.children().get(f"penstock: {victim}") not in (None, pid)
            )
        )
        wait_until(server.ready)
    second = client.responses.create(input="And then?", previous_response_id=first.id, **asked)
    said = [
        {"role": "user", "content": "The river is"},
        *[each.model_dump(exclude_none=True) for each in first.output],
        {"role": "user", "content": "And then?"},
    ]
    whole = client.responses.create(input=said, store=False, **asked)  # type: ignore[arg-type]
    assert second.output_text == whole.output_text
    assert second.usage.input_tokens == whole.usage.input_tokens


def test_a_conversation_outlives_every_process(server: Server, client: OpenAI) -> None:
    """A turn whose gateway dies before its end is not in it, and one that is answered again in the
    background is in it once."""
    asked = {"model": server.model, "max_output_tokens": 12, "temperature": 0}
    conversation = client.conversations.create().id
    client.responses.create(input="The river is", conversation=conversation, **asked)
    whole, gateway = False, [server.child("gateway 0")]
    try:
        for event in client.responses.create(
            input="Lost",
            conversation=conversation,
            stream=True,
            **asked | {"max_output_tokens": 60},
        ):
            whole = whole or event.type in ("response.completed", "response.incomplete")
            if event.type == "response.output_text.delta" and gateway:
                os.kill(gateway.pop(), signal.SIGKILL)
    except (httpx.HTTPError, APIConnectionError):
        pass
    wait_until(server.ready)
    queued = client.responses.create(
        input="And then?", conversation=conversation, background=True, **asked
    )
    for victim in ("batches", "gateway 0", "engine"):
        os.kill(server.child(victim), signal.SIGKILL)
        wait_until(server.ready)
    wait_until(lambda: seen(client, queued.id).status in ("completed", "incomplete"))
    items = list(client.conversations.items.list(conversation, order="asc"))
    said = [each.content[0].text for each in items if each.role == "user"]  # type: ignore[union-attr]
    assert said == ["The river is", *(["Lost"] if whole else []), "And then?"]
    assert [each.role for each in items] == ["user", "assistant"] * len(said)  # type: ignore[union-attr]
    told = [{"role": each.role, "content": each.content[0].text} for each in items[:-1]]  # type: ignore[union-attr]
    again = client.responses.create(input=told, store=False, **asked)  # type: ignore[arg-type]
    assert again.output_text == items[-1].content[0].text  # type: ignore[union-attr]


def test_a_response_in_the_background_outlives_every_process(
    server: Server, client: OpenAI
) -> None:
    asked = {"model": server.model, "max_output_tokens": 48, "temperature": 0}
    wanted = client.responses.create(input="Rain is", **asked)
    queued = [client.responses.create(input="Rain is", background=True, **asked) for _ in range(4)]
    assert {each.status for each in queued} == {"queued"}
    for victim in ("batches", "gateway 0", "worker 0"):
        os.kill(server.child(victim), signal.SIGKILL)
        wait_until(server.ready)
    for each in queued:
        wait_until(lambda id=each.id: seen(client, id).status == "incomplete")
        found = seen(client, each.id)
        assert found.output_text == wanted.output_text
        assert found.background
    over = client.responses.create(input="Snow is", background=True, **asked)
    assert client.responses.cancel(over.id).status in ("cancelled", "incomplete")


def seen(client: OpenAI, id: str) -> Response:
    """The response as it is now."""
    while True:
        try:
            return client.responses.retrieve(id)
        except (APIConnectionError, InternalServerError):
            time.sleep(0.1)  # A gateway is started again.


def test_nothing_is_left_in_the_folder(server: Server, client: OpenAI, folder: Path) -> None:
    """Files were deleted, and uploads broken off."""
    kept = folder / "data" / "files"
    before = set(kept.iterdir())
    file = client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    assert (kept / file.id).read_bytes() == b"{}\n"
    client.files.delete(file.id)
    with pytest.raises(httpx.HTTPError):
        _break_off(server)
    wait_until(lambda: set(kept.iterdir()) == before)


def _break_off(server: Server) -> None:
    def content() -> Iterator[bytes]:
        yield b"--xyz\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\nabc"
        raise httpx.WriteError("the sender dies")

    headers = {"content-type": "multipart/form-data; boundary=xyz"}
    httpx.post(f"{server.url}/v1/files", content=content(), headers=headers, timeout=30)
