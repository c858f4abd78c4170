"""Scripts in the manner of vLLM's offline examples, with another import line.

They start an LLM of their own, which here is one more front end of the system that the tests share:
what they give LLM is taken and checked as ever, and only the engine is there already.
"""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import LLM, AsyncLLM, RequestOutputKind, SamplingParams
from testing.serving import Server, wait_until

pytestmark = [pytest.mark.timeout(600)]
SCRIPTS = sorted((Path(__file__).parent / "offline").glob("*.py"))
LONG = SamplingParams(max_tokens=2000, ignore_eos=True)


def endpoint(server: Server) -> str:
    (socket,) = server.runtime_base.rglob("frontend*")
    return f"ipc://{socket}"


@pytest.fixture
def shared_engine(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLMs and AsyncLLMs dial the running system instead of starting one."""
    start = AsyncLLM._start

    async def dial(self: AsyncLLM) -> None:
        self._endpoint = endpoint(server)
        await start(self)

    monkeypatch.setattr(AsyncLLM, "_start", dial)


@pytest.fixture
def llm(server: Server) -> Iterator[LLM]:
    with LLM(engine_endpoint=endpoint(server)) as llm:
        yield llm


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs(script: Path, shared_engine: None) -> None:
    runpy.run_path(str(script), run_name="__main__")


def test_the_library_says_what_http_says(llm: LLM, server: Server) -> None:
    prompt = "Here is a list of animals:"
    params = SamplingParams(temperature=0, max_tokens=16)
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    assert output.outputs[0].text == server.complete(prompt, max_tokens=16)
    messages = [{"role": "user", "content": "Name an animal."}]
    (chat,) = llm.chat(messages, params, use_tqdm=False)
    body = {"model": server.model, "messages": messages, "temperature": 0, "max_tokens": 16}
    answer = server.post("/v1/chat/completions", body)[1]
    assert chat.outputs[0].text == answer["choices"][0]["message"]["content"]
    assert len(chat.prompt_token_ids) == answer["usage"]["prompt_tokens"]


def test_the_progress_bar_tells_tokens_per_second(llm: LLM, capsys) -> None:
    llm.generate(["One", "Two"], SamplingParams(max_tokens=2))
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "input " in shown
    assert "toks/s" in shown
    made = []

    class Bar:
        def __init__(self, **keywords: object) -> None:
            made.append(keywords["total"])

        def set_postfix_str(self, *_: object, **__: object) -> None: ...
        def update(self, count: int) -> None:
            made.append(count)

        def close(self) -> None: ...

    llm.generate(["One", "Two"], SamplingParams(max_tokens=2), use_tqdm=Bar)
    assert made == [2, 1, 1]


def test_params_that_change_later_are_another_requests(server: Server) -> None:
    async def run() -> int:
        async with AsyncLLM(engine_endpoint=endpoint(server)) as llm:
            params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0)
            last = None
            async for output in llm.generate("Hello", params):
                params.max_tokens = 1
                params.output_kind = RequestOutputKind.DELTA
                last = output
            return len(last.outputs[0].token_ids)

    assert asyncio.run(run()) == 6


def test_a_cancelled_task_ends_its_request_in_the_engine(server: Server) -> None:
    def running() -> int:
        return int(server.get("/status")[1]["engine"]["running"])

    async def run() -> None:
        async with AsyncLLM(engine_endpoint=endpoint(server)) as llm:
            begun = asyncio.Event()

            async def consume() -> None:
                async for _ in llm.generate("Tell me", LONG, "mine"):
                    begun.set()

            task = asyncio.create_task(consume())
            await begun.wait()
            with pytest.raises(ValueError, match="'mine' is in use"):
                await anext(llm.generate("Tell me", LONG, "mine"))
            await asyncio.to_thread(wait_until, lambda: running() == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: running() == 0)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("messages", "keywords", "words"),
    [
        ([], {}, "messages is empty"),
        ([{"role": "king", "content": "x"}], {}, "role must be one of"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "media are not supported"),
        ([{"role": "user", "content": "x"}], {"continue_final_message": True}, "both be true"),
        (
            [{"role": "user", "content": "x"}],
            {"chat_template_kwargs": {"messages": []}},
            "can't set 'messages'",
        ),
        ([{"role": "user", "content": "x"}], {"chat_template": "{% if"}, "chat template"),
    ],
)
def test_a_conversation_that_cannot_be(llm: LLM, messages, keywords, words) -> None:
    with pytest.raises(Exception, match=words):
        llm.chat(messages, use_tqdm=False, **keywords)


def test_a_prompt_of_another_shape_is_named(llm: LLM) -> None:
    with pytest.raises(ValueError, match="no field 'images'"):
        llm.generate({"prompt": "x", "images": []}, use_tqdm=False)
    with pytest.raises(ValueError, match="which takes text only"):
        llm.generate({"prompt": "x", "multi_modal_data": {"image": b"GIF"}}, use_tqdm=False)
    with pytest.raises(ValueError, match="2 prompts and 1 sampling params"):
        llm.generate(["x", "y"], [SamplingParams()], use_tqdm=False)
