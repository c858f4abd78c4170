"""What is asked of the engine for a window, and what its answer's quality is taken from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.request.sampling_params import SamplingParams
from penstock.request.terms import Terms
from penstock.transcription.decoding import WindowDecoder
from penstock.transcription.wishes import Wishes
from tests.gateway.byte_tokenizer import ByteTokenizer
from tests.shared.transcription.test_segments import FACTS

PROMPT: Any = SimpleNamespace(prompt_token_ids=[FACTS.start], media=None)


class OneAnswer:
    """An engine that always says the same. given: (token, log-probability)."""

    def __init__(self, given: list[tuple[int, float]]) -> None:
        self._given = given
        self.asked: list[SamplingParams] = []

    async def submit(self, prompt: list[int], params: SamplingParams, **more: Any) -> Any:
        self.asked.append(params)
        return self

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        yield [
            SimpleNamespace(
                finish_reason="stop",
                token_ids=[token for token, _ in self._given],
                logprobs=[SimpleNamespace(logprob=logprob) for _, logprob in self._given],
            )
        ]

    def abort(self) -> None:
        """It has ended."""


GUESSED = [(60, -0.1), (1, -3.0), (FACTS.end, -2.0)]


def decoder(engine: OneAnswer, wishes: Wishes, seed: int = 11) -> WindowDecoder:
    tokenizer: Any = ByteTokenizer()
    client: Any = engine
    return WindowDecoder(client, tokenizer, FACTS, wishes, seed, name="a", terms=Terms())


@pytest.mark.parametrize(
    ("wishes", "seeds"),
    [
        (Wishes(), [11] * 6),
        (Wishes(seed=3), [3] * 6),
        (Wishes(temperature=0.5), [None]),
        (Wishes(temperature=0.5, seed=3), [3]),
    ],
)
async def test_what_is_tried_from_temperature_0_is_drawn_with_a_known_seed(
    wishes: Wishes, seeds: list[int | None]
) -> None:
    engine = OneAnswer(GUESSED)
    await decoder(engine, wishes).decode(PROMPT, PROMPT, 20)
    assert [params.temperature for params in engine.asked] == list(wishes.temperatures)
    assert [params.seed for params in engine.asked] == seeds


async def test_timestamps_dont_count_among_what_was_guessed() -> None:
    engine = OneAnswer([(60, -9.0), (1, -0.5), (61, -9.0), (FACTS.end, -0.25)])
    found = await decoder(engine, Wishes()).decode(PROMPT, PROMPT, 20)
    assert found.quality.average_logprob == -0.375
    assert (found.temperature, len(engine.asked)) == (0.0, 1)
