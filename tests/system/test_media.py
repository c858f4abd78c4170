"""Pictures through a whole system: what is said of them is what transformers says, in any company,
and after any process died under it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from penstock import LLM, SamplingParams
from testing.serving import PATIENCE, Server
from tests.gateway.media import data_uri, image, text
from tests.shared.media.pictures import picture, saved
from tests.system.killed_streams import check_a_killed_stream
from tests.system.seeing_models import ROWS, said_by_transformers, write_llava

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 12
"""Tokens of an answer."""
FLAGS = ("--max-model-len", "512", "--num-kv-blocks", "256", "--dtype", "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llava(tmp_path_factory.mktemp("llava") / "tiny-llava")


@pytest.fixture(scope="module")
def seeing(folder: Path) -> Iterator[Server]:
    with Server(str(folder), *FLAGS) as server:
        yield server


def body(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": list(content)}]
    greedy = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "return_token_ids": True}
    return {"messages": messages, **greedy, **more}


def ask(url: str, *content: dict[str, Any], **more: Any) -> dict[str, Any]:
    reply = httpx.post(f"{url}/v1/chat/completions", json=body(*content, **more), timeout=120)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def tokens(reply: dict[str, Any]) -> list[int]:
    ids: list[int] = reply["choices"][0]["token_ids"]
    return ids


def shown(seed: int, width: int = 40, height: int = 30) -> dict[str, Any]:
    return image(data_uri(saved(picture(width, height, seed))))


QUESTIONS: list[tuple[str, list[dict[str, Any]], list[Any]]] = [
    ("xy<image>z", [text("xy"), shown(1), text("z")], [picture(seed=1)]),
    ("xy<image>z", [text("xy"), shown(2), text("z")], [picture(seed=2)]),
    (
        "<image>x<image>",
        [shown(1), text("x"), shown(3, 31, 90)],
        [picture(seed=1), picture(31, 90, 3)],
    ),
    (
        "<image>y<image>y<image>",
        [shown(1), text("y"), shown(2), text("y"), shown(1)],
        [picture(seed=1), picture(seed=2), picture(seed=1)],
    ),
]


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[tuple[list[int], list[int]]]:
    return [
        said_by_transformers(folder, f"user:{prompt};assistant:", pictures, COUNT)
        for prompt, _, pictures in QUESTIONS
    ]


def test_served_answers_to_pictures_are_those_of_transformers(
    seeing: Server, wanted: list[tuple[list[int], list[int]]]
) -> None:
    for (_, content, _), (prompt_token_ids, ids) in zip(QUESTIONS, wanted, strict=True):
        reply = ask(seeing.url, *content)
        assert reply["prompt_token_ids"] == prompt_token_ids
        assert tokens(reply) == ids
    assert re.search(r"model loaded.*backend\W+cpu", seeing.stderr), "auto takes the fast kernels"
    # Another picture, another answer: the model does look.
    assert wanted[0][0] == wanted[1][0]
    assert wanted[0][1] != wanted[1][1]


def test_the_same_answers_in_company_and_again(
    seeing: Server, wanted: list[tuple[list[int], list[int]]]
) -> None:
    asked = [QUESTIONS[number % 3][1] for number in range(9)]
    with ThreadPoolExecutor(9) as crowd:
        replies = list(crowd.map(lambda content: ask(seeing.url, *content, logprobs=True), asked))
    for number, reply in enumerate(replies):
        assert tokens(reply) == wanted[number % 3][1]
        assert reply["choices"][0]["logprobs"] == replies[number % 3]["choices"][0]["logprobs"]
    asked_for = {"x-penstock-timeline": "1"}
    again = httpx.post(
        f"{seeing.url}/v1/chat/completions",
        json=body(*QUESTIONS[0][1]),
        headers=asked_for,
        timeout=120,
    ).json()
    assert tokens(again) == wanted[0][1]
    (sequence,) = again["penstock_timeline"]["sequences"]
    assert (sequence["encoded_items"], sequence["cached_items"]) == (0, 1)
    metrics = httpx.get(f"{seeing.url}/metrics", timeout=PATIENCE).text
    prepared = [line for line in metrics.splitlines() if "media_prepared_total{" in line]
    # Three pictures in all, however often they came.
    assert [float(line.split()[-1]) for line in prepared] == [3.0]


def test_other_apis_say_the_same_of_a_picture(seeing: Server) -> None:
    shown_to, file = "xy", saved(picture(seed=1))
    question = [text(shown_to), image(data_uri(file))]
    told = ask(seeing.url, *question, ignore_eos=False)["choices"][0]["message"]["content"]
    encoded = base64.b64encode(file).decode()
    source = {"type": "base64", "media_type": "image/png", "data": encoded}
    content = [{"type": "text", "text": shown_to}, {"type": "image", "source": source}]
    asked = {
        "max_tokens": COUNT,
        "temperature": 0,
        "messages": [{"role": "user", "content": content}],
    }
    reply = httpx.post(f"{seeing.url}/v1/messages", json=asked, timeout=120).json()
    assert "".join(block["text"] for block in reply["content"]) == told
    # Ollama has pictures before the text.
    first = ask(seeing.url, question[1], question[0], ignore_eos=False)["choices"][0]["message"]
    messages = [{"role": "user", "content": shown_to, "images": [encoded]}]
    options = {"num_predict": COUNT, "temperature": 0}
    given = {"messages": messages, "options": options, "stream": False}
    answer = httpx.post(f"{seeing.url}/api/chat", json=given, timeout=120).json()
    assert answer["message"]["content"] == first["content"]


def test_pictures_are_counted_without_being_shown(seeing: Server) -> None:
    given = {"messages": [{"role": "user", "content": QUESTIONS[2][1]}]}
    reply = httpx.post(f"{seeing.url}/tokenize", json=given, timeout=60).json()
    assert reply["count"] == 2 * ROWS + len("user:x;assistant:")


def test_a_bad_picture_is_the_clients_fault_and_nobody_elses(seeing: Server) -> None:
    before = seeing.processes()
    given = body(text("x"), image(data_uri(b"<svg/>")))
    reply = httpx.post(f"{seeing.url}/v1/chat/completions", json=given, timeout=60)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages[0].content[1]"
    assert before.items() <= seeing.processes().items()


@pytest.mark.parametrize("victim", ["worker 0", "engine"])
def test_a_stream_about_pictures_goes_on_when_a_process_is_killed(
    seeing: Server, victim: str
) -> None:
    messages = [{"role": "user", "content": QUESTIONS[2][1]}]
    check_a_killed_stream(seeing, victim, messages, 64)


def test_the_library_says_the_same(folder: Path, wanted: list[tuple[list[int], list[int]]]) -> None:
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    with LLM(str(folder), max_model_len=512, num_kv_blocks=256, dtype="float32") as llm:
        prompts: Any = [
            {"prompt": f"user:{prompt};assistant:", "multi_modal_data": {"image": pictures}}
            for prompt, _, pictures in QUESTIONS
        ]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == [ids for _, ids in wanted]
        assert [output.prompt_token_ids for output in outputs] == [ids for ids, _ in wanted]
        parts = [
            {"type": "text", "text": "xy"},
            {"type": "image_pil", "image_pil": np.asarray(picture(seed=1))},
            {"type": "text", "text": "z"},
        ]
        (output,) = llm.chat([{"role": "user", "content": parts}], params, use_tqdm=False)
        assert output.outputs[0].token_ids == wanted[0][1]
