"""A shortened trace of agents, served: their prompts are found beside traffic that fills the pool
again and again, and what they are told is the same bytes as without sessions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.errors import InvalidRequest
from penstock_planning.simulate.agents import AgentTraffic, agents, seen_before
from penstock_planning.simulate.trace import TraceRequest
from testing.metrics_page import PORTS, port_of, read_page
from testing.serving import Server, wait_until
from testing.tiny_models import write_gguf
from tests.gateway.agents.shapes import claude_code

pytestmark = pytest.mark.timeout(300)  # beside four other jobs the first one takes 94 seconds

TRAFFIC = AgentTraffic(
    sessions=2,
    kinds=1,
    system=640,
    turns=30,
    turns_sigma=0.0,
    task=10,
    step=22,
    step_sigma=0.3,
    output=5,
    output_sigma=0.3,
    tool=3.0,
)
POOL = ("--num-kv-blocks", "1000", "--kv-block-size", "4", "--session-kv-share", "0.8")
OTHERS, OTHER_TOKENS = 2, 1300
"""Requests between two turns of a session, which together take most of the pool."""


@pytest.fixture
def model(tmp_path: Path) -> str:
    """With a context that is long enough."""
    path = tmp_path / "long.gguf"
    without = ("context_length",)
    write_gguf(path, adjust=lambda writer: writer.add_context_length(4096), without=without)
    return str(path)


def served(server: Server, trace: list[TraceRequest], told: str) -> tuple[float, list[list[int]]]:
    """(share of the sessions' prompt tokens that was found, what each turn was told)."""
    numbers = itertools.count()
    said: dict[str, list[int]] = {}
    found = asked = 0
    answers = []
    sessions = {request.session: [] for request in trace}  # type: ignore[var-annotated]
    for request in trace:
        sessions[request.session].append(request)
    for turns in itertools.zip_longest(*sessions.values()):
        for number, turn in enumerate(turns):
            if turn is None:
                continue
            prompt = said.setdefault(turn.session, system_prompt())
            prompt += fresh(turn.num_prompt - len(prompt), 7 * number)
            reply = completed(server, prompt, turn, told)
            usage, answer = reply["usage"], reply["choices"][0]["token_ids"]
            found += usage["prompt_tokens_details"]["cached_tokens"]
            asked += usage["prompt_tokens"]
            prompt += answer
            answers.append(answer)
        for _ in range(OTHERS):
            other = fresh(OTHER_TOKENS, 1000 + next(numbers))
            server.complete(other, max_tokens=1, cache_salt=told)  # type: ignore[arg-type]
    return found / asked, answers


def completed(server: Server, prompt: list[int], turn: TraceRequest, told: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": turn.output_tokens,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": len(prompt),
        "cache_salt": told,
        "return_token_ids": True,
    }
    if told == "sessions":
        body["session_id"] = turn.session
        if turn.resume_within is not None:
            body["kv_hint"] = {"resume_within_s": turn.resume_within}
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    return reply


def system_prompt() -> list[int]:
    return [3 + at * 31 % 200 for at in range(TRAFFIC.system)]


def fresh(count: int, seed: int) -> list[int]:
    """Tokens that nobody has asked with."""
    return [3 + (seed * 97 + at * (seed % 13 + 1) + at // 7) % 240 for at in range(count)]


def test_what_agents_said_before_is_found(start_server: Callable[..., Server], model: str) -> None:
    trace = list(agents(TRAFFIC))
    assert seen_before(trace) >= 0.96
    server = start_server(model, *POOL, *PORTS)
    shares, answers = {}, {}
    for told in ("nothing", "sessions"):
        shares[told], answers[told] = served(server, trace, told)
    assert answers["nothing"] == answers["sessions"]
    assert shares["sessions"] >= 0.95, shares
    assert shares["nothing"] < 0.9, shares
    page = read_page(port_of(server, "engine"))
    assert page.value("penstock:sessions") == TRAFFIC.sessions
    assert 0 < page.value("penstock:session_kv_blocks") <= 800


def test_a_session_that_was_away_is_read_from_disk_before_it_is_back(
    start_server: Callable[..., Server], model: str, tmp_path: Path
) -> None:
    server = start_server(model, *POOL, *PORTS, "--disk-kv-dir", str(tmp_path / "kv"))
    prompt = fresh(800, 77)
    fields: dict[str, Any] = {"seed": 4, "temperature": 0.8, "session_id": "a"}
    asked: dict[str, Any] = {"prompt": prompt, "max_tokens": 6, "ignore_eos": True, **fields}
    alone = server.post("/v1/completions", asked)[1]["choices"][0]["text"]
    page = port_of(server, "engine")
    kept, prefetched = "penstock:session_kv_blocks", "penstock:prefetched_kv_blocks_total"
    for within in (4, 10, 30):
        hint = {"kv_retention_seconds": 0, "kv_hint": {"resume_within_s": within}}
        server.post("/v1/completions", asked | hint)
        for number in range(4):
            server.complete(fresh(OTHER_TOKENS, number), max_tokens=1)  # type: ignore[arg-type]
        wait_until(lambda: read_page(page).value(kept) > 0)
        if read_page(page).value(prefetched, tier="disk") > 100:
            break  # Else the machine is so slow that it was brought back before it had gone.
    else:
        pytest.fail("nothing was read before the session was back")
    read = read_page(page).value("penstock:disk_kv_blocks_total", result="read")
    reply = server.post("/v1/completions", asked)[1]
    assert reply["choices"][0]["text"] == alone
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= 780
    assert read_page(page).value("penstock:disk_kv_blocks_total", result="read") == read


def test_the_library_keeps_a_sessions_kv(model: str) -> None:
    """Beside prompts that fill the pool, those of a session are found, and those of nobody not."""
    mine = {"prompt_token_ids": [n % 200 + 1 for n in range(400)]}
    others = [
        {"prompt_token_ids": [number, *[n % 150 + 9 for n in range(600)]]} for number in (2, 4)
    ]
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    found, said = [], set()
    for session in ({"session_id": "a", "kv_retention_seconds": 600}, {}):
        with LLM(model, num_kv_blocks=300, kv_block_size=4, max_num_seqs=1) as llm:
            for _ in range(2):
                (output,) = llm.generate(mine, params, **session)
                llm.generate(others, params)
            (output,) = llm.generate(mine, params, **session)
            found.append(output.num_cached_tokens)
            said.add(output.outputs[0].text)
            with pytest.raises(InvalidRequest, match="kv_retention_seconds needs a session_id"):
                llm.generate(mine, params, kv_retention_seconds=3)
    assert (found, len(said)) == ([396, 0], 1)


def test_a_coding_agents_next_turn_finds_its_last_one(server: Server) -> None:
    """Claude Code's requests each begin with another billing line."""
    shares = []
    said: list[tuple[dict[str, Any], str]] = []
    for turn in range(4):
        body = claude_code(said)
        body["system"][1]["text"] = "".join(f"Rule {n}: work in small steps. " for n in range(60))
        body |= {"max_tokens": 8, "stream": False, "model": None, "tools": None}
        status, answer = server.post("/v1/messages", body)
        assert status == 200, answer
        usage = answer["usage"]
        found = usage["cache_read_input_tokens"]
        shares.append(found / (found + usage["input_tokens"]))
        call = {
            "type": "tool_use",
            "id": f"toolu_{turn}",
            "name": "Bash",
            "input": {"command": "ls"},
        }
        said.append(({"content": [*answer["content"], call]}, f"file {turn}"))
    assert shares[0] < 0.5
    assert all(share > 0.85 for share in shares[1:]), shares
