"""Structured output from the library down to the real model, and through deaths of processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable

import pytest

from penstock import AsyncLLM, SamplingParams, StructuredOutputs
from penstock.llm import RequestOutput
from testing.descendants import descendants

pytestmark = [pytest.mark.timeout(600)]
SMALL = {"max_model_len": 1024, "num_kv_blocks": 256}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 20, "maxLength": 60},
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 12, "maxItems": 16},
    },
    "required": ["name", "numbers"],
    "additionalProperties": False,
}
PROMPT = "A record of the harbour of Brest, as JSON: "
AMBIGUOUS = 'start: e\ne: e e e | e e | "a" | "b"\n'


def person(n: int = 2, logprobs: int | None = 2) -> SamplingParams:
    return SamplingParams(
        n=n,
        temperature=0.9,
        seed=3,
        max_tokens=300,
        logprobs=logprobs,
        structured_outputs=StructuredOutputs(json=SCHEMA),
    )


async def final(
    llm: AsyncLLM,
    params: SamplingParams,
    prompt: str = PROMPT,
    watch: Callable[[RequestOutput], None] = lambda output: None,
) -> RequestOutput:
    last = None
    async for output in llm.generate(prompt, params):
        watch(output)
        last = output
    assert last is not None
    return last


def check_record(text: str) -> None:
    record = json.loads(text)
    assert list(record) == ["name", "numbers"]
    assert 20 <= len(record["name"]) <= 60
    assert 12 <= len(record["numbers"]) <= 16
    assert {type(number) for number in record["numbers"]} == {int}


def processes(title: str) -> set[int]:
    """This process's descendants with that word in their titles."""
    found = (process.pid for process in descendants(title))
    return set(found) - {process.pid for process in descendants("serve")}


def test_outputs_conform_alone_and_in_a_crowd() -> None:
    async def run() -> None:
        async with AsyncLLM(**SMALL) as llm:
            alone = await final(llm, person())
            crowd = await asyncio.gather(
                final(llm, person()),
                final(llm, SamplingParams(temperature=0, max_tokens=60), "One, two,"),
                final(llm, wanted(regex=r"(19|20)\d\d-[01]\d-[0-3]\d"), "The date: "),
                final(llm, wanted(choice=["Paris", "London"]), "The capital of France is "),
                final(llm, wanted(grammar='start: "<" /[a-z]{3,8}/ ">"'), "A tag: "),
            )
            for output in alone.outputs:
                assert output.finish_reason == "stop"
                check_record(output.text)
            assert alone.outputs[0].text != alone.outputs[1].text
            assert crowd[0].outputs == alone.outputs
            date, city, tag = (output.outputs[0].text for output in crowd[2:])
            assert re.fullmatch(r"(19|20)\d\d-[01]\d-[0-3]\d", date)
            assert city == "Paris"
            assert re.fullmatch("<[a-z]{3,8}>", tag)

    asyncio.run(run())


def wanted(**fields: object) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=40, structured_outputs=StructuredOutputs(**fields)
    )


def test_what_cannot_be_compiled_is_a_value_error_before_anything_comes() -> None:
    async def run() -> None:
        async with AsyncLLM(**SMALL, max_grammar_bytes=256) as llm:
            with pytest.raises(ValueError, match="Invalid type: thing"):
                await final(llm, wanted(json={"type": "thing"}))
            with pytest.raises(ValueError, match="unclosed group"):
                await final(llm, wanted(regex="(a"))
            with pytest.raises(ValueError, match="300 bytes; at most 256"):
                await final(llm, wanted(regex="a" * 300))
            assert (await final(llm, wanted(regex="a{3}"))).outputs[0].text == "aaa"

    asyncio.run(run())


@pytest.mark.parametrize("victim", ["worker", "engine"])
def test_a_json_schema_outlives_a_killed_process(victim: str) -> None:
    others = processes(victim)  # of the server that other tests share

    async def run() -> None:
        async with AsyncLLM(**SMALL) as llm:
            undisturbed = await final(llm, person())
            killed = []

            def kill_once(output: RequestOutput) -> None:
                if len(output.outputs[1].token_ids) >= 20 and not killed:
                    (pid,) = processes(victim) - others
                    killed.append(pid)
                    os.kill(pid, signal.SIGKILL)

            disturbed = await final(llm, person(), watch=kill_once)
            assert killed
            assert disturbed.outputs == undisturbed.outputs
            for output in disturbed.outputs:
                check_record(output.text)

    asyncio.run(run())


@pytest.mark.long  # test_grammars_default has an ambiguous one in make test
def test_a_slow_grammar_fails_with_a_reason_and_its_neighbour_goes_on() -> None:
    async def run() -> None:
        async with AsyncLLM(**SMALL, grammar_mask_budget_ms=1) as llm:
            plain = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
            alone = await final(llm, plain)
            slow = SamplingParams(
                temperature=0,
                max_tokens=600,
                structured_outputs=StructuredOutputs(grammar=AMBIGUOUS),
            )
            ambiguous, beside = await asyncio.gather(final(llm, slow), final(llm, plain))
            assert beside.outputs == alone.outputs
            [output] = ambiguous.outputs
            assert output.finish_reason == "error"
            assert "grammar" in output.error
            assert set(output.text) <= {"a", "b"}

    asyncio.run(run())
