"""A model whose thoughts are held to a budget, through a whole system: to the token, streamed or
whole, in any company, and when processes die under it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken, Tokenizer

from penstock import LLM, SamplingParams
from testing.serving import PATIENCE, Server, wait_until
from testing.tiny_models import CHATML, byte_level_tokenizer

pytestmark = [pytest.mark.timeout(300)]

THINKS = "{% if enable_thinking is not defined or enable_thinking %}"
TEMPLATE = CHATML + THINKS + "{{ '<think>\n' }}{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Why?"}],
    "max_tokens": 60,
    "seed": 4,
    "ignore_eos": True,
    "return_token_ids": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 with random weights, whose prompts open a block of thoughts."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    made = tmp_path_factory.mktemp("thinking") / "tiny-qwen3"
    tokens = Tokenizer.from_str(byte_level_tokenizer().to_str())
    marks = ["<think>", "</think>"]
    tokens.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    ids = tokens.get_vocab(with_added_tokens=True)
    config = Qwen3Config(
        vocab_size=len(ids),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        initializer_range=0.3,
        eos_token_id=ids["<|im_end|>"],
        bos_token_id=None,
    )
    torch.manual_seed(11)
    Qwen3ForCausalLM(config).eval().save_pretrained(made)
    tokens.save(str(made / "tokenizer.json"))
    said = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (made / "tokenizer_config.json").write_text(json.dumps(said))
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(str(folder), "--num-kv-blocks", "64") as running:
        yield running


@pytest.fixture(scope="module")
def close(folder: Path) -> int:
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return int(tokens.token_to_id("</think>"))


def answer(server: Server, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    body = {**BODY, **fields}
    reply = httpx.post(f"{server.url}{path}", json=body, timeout=4 * PATIENCE)
    assert reply.status_code == 200, reply.text
    return reply.json()


def ids_of(found: Any) -> list[int]:
    ids: list[int] = found["choices"][0]["token_ids"]
    return ids


@pytest.mark.parametrize("budget", [0, 1, 5, 30])
def test_thoughts_end_at_the_budget(server: Server, close: int, budget: int) -> None:
    """The prompt ends in <think> and a line break, which is one token of thoughts."""
    free = answer(server)
    assert close not in ids_of(free)
    assert free["choices"][0]["message"]["content"] is None
    found = answer(server, thinking_token_budget=budget)
    thoughts = max(0, budget - 1)
    ids = ids_of(found)
    assert ids[: thoughts + 1] == [*ids_of(free)[:thoughts], close]
    assert len(ids) == 60
    assert close not in ids[thoughts + 1 :]
    message, usage = found["choices"][0]["message"], found["usage"]
    assert message["content"]
    assert bool(message.get("reasoning")) == (thoughts > 0)
    details = usage["completion_tokens_details"]
    assert details["reasoning_tokens"] == (thoughts + 1 if thoughts else 0)


def test_a_prompt_without_thoughts_has_nothing_to_close(server: Server, close: int) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert ids_of(answer(server, **off, thinking_token_budget=3)) == ids_of(answer(server, **off))


def test_completions_count_from_the_mark(server: Server, close: int) -> None:
    def asked(prompt: str) -> list[int]:
        text = answer(
            server, "/v1/completions", messages=None, prompt=prompt, thinking_token_budget=4
        )
        return ids_of(text)

    assert asked("Why? <think>")[4] == close
    assert close not in asked("Why?")


def test_a_grammar_begins_behind_what_was_closed(server: Server, close: int) -> None:
    """Under a grammar thoughts are free text up to the mark."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    found = answer(
        server,
        ignore_eos=False,
        max_tokens=400,
        thinking_token_budget=6,
        response_format=form,
        logit_bias=None,
    )
    assert ids_of(found).index(close) == 5
    assert json.loads(found["choices"][0]["message"]["content"]).keys() >= {"a"}


def streamed(server: Server, at: int = -1, victim: int = 0, **fields: Any) -> list[int]:
    """The ids of a stream. A process is killed behind the event `at`."""
    ids: list[int] = []
    body = {**BODY, "stream": True, **fields}
    url = f"{server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=4 * PATIENCE) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        for count, line in enumerate(lines):
            if count == at:
                os.kill(victim, signal.SIGKILL)
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                ids += choice.get("token_ids") or []
    return ids


@pytest.mark.parametrize("victim", ["worker 0", "engine"])
@pytest.mark.parametrize("at", [2, 20])
def test_a_killed_process_changes_no_token(
    server: Server, close: int, victim: str, at: int
) -> None:
    """Before the budget is spent, and behind what was closed."""
    wait_until(server.ready)
    undisturbed = ids_of(answer(server, thinking_token_budget=15))
    assert undisturbed[14] == close
    assert streamed(server, at, server.child(victim), thinking_token_budget=15) == undisturbed


def test_company_changes_no_token(server: Server) -> None:
    wait_until(server.ready)
    budgets = [0, 3, 3, 7, 11, 12, 20, 31]
    alone = [ids_of(answer(server, thinking_token_budget=each)) for each in budgets]
    with ThreadPoolExecutor(len(budgets)) as pool:
        together = pool.map(lambda each: streamed(server, thinking_token_budget=each), budgets)
    assert list(together) == alone


def test_the_library_has_it(server: Server, folder: Path, close: int) -> None:
    params = SamplingParams(max_tokens=60, seed=4, ignore_eos=True, thinking_token_budget=15)
    with LLM(str(folder), num_kv_blocks=64) as llm:
        (found,) = llm.chat([BODY["messages"]], params)
    assert found.outputs[0].token_ids == ids_of(answer(server, thinking_token_budget=15))


def test_a_model_that_marks_no_thoughts_refuses_a_budget(tiny_model: str) -> None:
    with (
        LLM(tiny_model, num_kv_blocks=64) as llm,
        pytest.raises(ValueError, match="it isn't known how this model marks its thoughts"),
    ):
        llm.generate("x", SamplingParams(thinking_token_budget=3))
