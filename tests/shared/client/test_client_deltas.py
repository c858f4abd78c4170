"""Putting together what sequences gain costs no more than it is long."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import SamplingParams
from penstock.client import EngineClient, SequenceDelta, best_of
from penstock.llm.assembly import Assembly
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_frontend import SequenceOutput
from penstock.request.sampling_params import RequestOutputKind

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]

COUNT = 2000


class Copies:
    """How much has been copied to append something to it."""

    def __init__(self) -> None:
        self.elements = 0

    def text(self, text: str) -> str:
        copies = self

        class Text(str):
            __slots__ = ()

            def __radd__(self, before: str) -> str:
                copies.elements += len(before)
                return str.__add__(before, self)

        return Text(text)

    def list(self, items: list[Any]) -> list[Any]:
        copies = self

        class Items(list[Any]):
            def __radd__(self, before: list[Any]) -> list[Any]:
                copies.elements += len(before)
                return list.__add__(before, self)

        return Items(items)


def entry(number: int) -> TokenLogprobs:
    return TokenLogprobs(-number / COUNT, (number,), (-1.0,))


def texts() -> list[str]:
    return [chr(97 + number % 26) for number in range(COUNT)]


async def test_copies_are_counted() -> None:
    """Appending as it must not be done makes copies, and these are counted."""
    copies = Copies()
    whole: list[int] = []
    text = ""
    for _ in range(10):
        whole = whole + copies.list([1])
        text = text + copies.text("x")
    assert copies.elements == 2 * 45


async def test_what_a_slow_reader_has_not_taken_grows_in_linear_time(client: EngineClient) -> None:
    params = SamplingParams(max_tokens=50, logprobs=1, seed=1)
    generation = await client.submit(list(b"x"), params, name="slow")
    copies = Copies()
    for number, text in enumerate(texts()):
        found = copies.list([entry(number)])
        generation.take(SequenceOutput(generation.key, 0, list(text.encode()), found))
    generation.take(SequenceOutput(generation.key, 0, finish="length"))
    [delta] = await anext(generation)
    assert copies.elements == 0
    assert delta.text == "".join(texts())
    assert delta.token_ids == list("".join(texts()).encode())
    assert delta.logprobs == [entry(number) for number in range(COUNT)]
    assert delta.finish_reason == "length"


class Played:
    """A generation, and the client that gives it: sequences gain a letter at each step."""

    cached_tokens = 0
    prompt_logprobs = None
    name = "played"
    prompt_token_ids = (1,)

    def __init__(self, copies: Copies, params: SamplingParams) -> None:
        self.params = params
        self.finished = False
        self._copies = copies
        self._step = 0

    async def submit(self, prompt: Any, params: SamplingParams, **more: Any) -> Played:
        self.params = params
        return self

    def __aiter__(self) -> Played:
        return self

    async def __anext__(self) -> list[SequenceDelta]:
        if self.finished:
            raise StopAsyncIteration
        number, self._step = self._step, self._step + 1
        self.finished = self._step == COUNT
        return [
            SequenceDelta(
                index=index,
                text=self._copies.text(texts()[number]),
                token_ids=[number],
                logprobs=self._copies.list([entry(number)]),
                finish_reason="length" if self.finished else None,
            )
            for index in range(self.params.n)
        ]

    def abort(self) -> None: ...


async def test_best_of_collects_in_linear_time() -> None:
    copies = Copies()
    params = SamplingParams(logprobs=0)
    played: Any = Played(copies, params)
    found = await best_of(played, [1], params, best_of=3, name="b")
    assert copies.elements == 0
    [best] = found.chosen
    assert best.text == "".join(texts())
    assert best.token_ids == list(range(COUNT))
    assert best.logprobs == [entry(number) for number in range(COUNT)]
    assert found.generated_tokens == 3 * COUNT


@pytest.mark.parametrize("kind", [RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA])
async def test_the_library_collects_in_linear_time(kind: RequestOutputKind) -> None:
    class Names:
        def token_text(self, token: int) -> str:
            return str(token)

    copies = Copies()
    params = SamplingParams(n=2, logprobs=1, output_kind=kind)
    played: Any = Played(copies, params)
    assembly = Assembly(played, "x", Names())  # type: ignore[arg-type]
    outputs = [output async for deltas in played if (output := assembly.take(deltas)) is not None]
    assert len(outputs) == (COUNT if kind is RequestOutputKind.DELTA else 1)
    assert copies.elements == 0
    for index in range(2):
        parts = [output.outputs[index] for output in outputs]
        assert "".join(part.text for part in parts) == "".join(texts())
        assert [token for part in parts for token in part.token_ids] == list(range(COUNT))
        assert parts[-1].finish_reason == "length"
