"""What the measurement of long conversations sends, and what its page makes of the answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest import long_chats
from loadtest.long_chats import LONG, Texts, markdown
from loadtest.peers import servers
from loadtest.peers.peer import PeerFailed

pytestmark = pytest.mark.timeout(60)

MACHINE = {"cpu": "a CPU", "cores": 2.0, "memory_bytes": 2**34, "python": "3.12.3"}
WORDS = ("", "It", " parses", " dates.")
USAGE = {"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 64}}


def events(*chunks: dict[str, Any]) -> bytes:
    lines = [*(json.dumps(chunk) for chunk in chunks), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def asked(content: bytes, status: int = 200) -> tuple[float, str, dict[str, int]]:
    return asked_of(httpx.MockTransport(lambda request: httpx.Response(status, content=content)))


def asked_of(transport: httpx.MockTransport) -> tuple[float, str, dict[str, int]]:
    async def asking() -> tuple[float, str, dict[str, int]]:
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            messages = [{"role": "user", "content": "Which file?"}]
            return await long_chats._asked(client, "m", messages)

    return asyncio.run(asking())


def chunk(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def test_an_answer_is_read_with_the_tokens_that_the_server_counts() -> None:
    seconds, answer, usage = asked(events(*map(chunk, WORDS), {"choices": [], "usage": USAGE}))
    assert answer == "It parses dates."
    assert usage == {"prompt_tokens": 70, "cached_tokens": 64}
    assert seconds > 0


def test_a_server_that_counts_nothing_is_measured_too() -> None:
    assert asked(events(*map(chunk, WORDS)))[2] == {}


@pytest.mark.parametrize(
    ("content", "status"), [(events(chunk("")), 200), (b'{"error": "too long"}', 400)]
)
def test_an_answer_without_a_token_is_no_result(content: bytes, status: int) -> None:
    with pytest.raises(PeerFailed):
        asked(content, status)


def breaks_off(request: httpx.Request) -> httpx.Response:
    raise httpx.RemoteProtocolError("peer closed connection")


def test_a_server_that_crashes_is_no_result() -> None:
    with pytest.raises(PeerFailed, match=r"http://server.*peer closed connection"):
        asked_of(httpx.MockTransport(breaks_off))


@pytest.mark.parametrize("has", [True, False])
def test_the_note_says_where_llamacpp_goes_without_its_buffers(
    monkeypatch: pytest.MonkeyPatch, has: bool
) -> None:
    monkeypatch.setattr(servers, "installed", lambda environment, program: Path(program))
    monkeypatch.setattr(servers, "version_in", lambda environment, name: "1")
    monkeypatch.setattr(servers, "_has_amx", lambda: has)
    server = servers.make_server("llamacpp", Path("m.gguf"))
    assert ("without its buffers for AMX, which crash" in server.note) is has
    assert ("-c" in server.command) is has


def test_no_text_comes_twice_and_all_have_their_length() -> None:
    texts = Texts()
    found = [each for tokens in (100, 50, 100) for each in texts.next(tokens, 20)]
    assert len(set(found)) == 60
    bodies = [each.partition("\n")[2] for each in found]
    assert {len(each) for each in bodies} == {180, 360}
    assert len(set(bodies)) == 60


def row(system: str, kind: str, turn: int, seconds: float, **counts: int) -> dict[str, Any]:
    return {"system": system, "kind": kind, "turn": turn, "first_token_s": seconds, **counts}


def test_the_page_has_medians_and_how_many_times_ours_is_as_quick() -> None:
    rows = []
    for i in (1, 2, 3):
        rows += [
            row("penstock", "chat", turn, turn * i, prompt_tokens=100 * turn) for turn in (1, 2)
        ]
        rows += [row("llamacpp", "chat", turn, 3 * turn * i) for turn in (1, 2)]
        rows += [row("penstock", LONG, 1, 10 * i), row("llamacpp", LONG, 1, 25 * i)]
    facts = {"command": "c", "started": "2026-12-01T10:00:00", "machine": MACHINE}
    systems = {"penstock": "0.1.0", "llamacpp": "llama-cpp-python 0.3.36"}
    notes = {"penstock": "as it is", "llamacpp": "without its buffers"}
    document = {"model": "m", "systems": systems, "notes": notes, "rounds": 3, "rows": rows}
    text = markdown({**facts, **document})
    assert "penstock: 0.1.0 (as it is), llamacpp: llama-cpp-python 0.3.36 (without" in text
    cells = {
        line.split("|")[1].strip(): [each.strip() for each in line.split("|")[2:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    }
    assert cells["turn 2"] == ["200", "–", "4.00", "12.00", "3.00"]
    assert cells[LONG] == ["–", "–", "20.00", "50.00", "2.50"]
