"""Log-probabilities of prompts' tokens are those with which the same tokens would be sampled: after
each of a prompt's beginnings, in a runner that has nothing else."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
import torch

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.steps import prompt_logprobs
from penstock_worker.steps.runner import StepRunner
from tests.worker.driver import GREEDY, make_runner

TOP = 2
TELLING = msgspec.structs.replace(GREEDY, prompt_logprobs=TOP)
PROMPTS = [[5, 6, 7, 8, 9, 200, 3], [11, 12], [250, 4, 4, 31, 5, 77, 8, 90, 2, 1]]


@pytest.fixture
def model(tiny_models: dict[torch.dtype, DecoderModel]) -> DecoderModel:
    return tiny_models[torch.float32]


def runner_of(model: DecoderModel) -> StepRunner:
    return make_runner(model, block_size=4, num_blocks=16, slots=4, max_tokens=20)


def sampled_after(model: DecoderModel, beginning: list[int]) -> dict[int, float]:
    """The log-probability of each id behind these tokens, the most likely id first."""
    everything = msgspec.structs.replace(GREEDY, logprobs=model.config.vocab_size)
    new = NewSequence(0, beginning, len(beginning), 0, everything, [*range(5)])
    plan = Plan(1, 0, [], [new], [SlotWork(0, 0, len(beginning))])
    shown = runner_of(model).execute(plan).slots[0].logprobs
    assert shown is not None
    return dict(zip(shown.top_ids, shown.top_logprobs, strict=True))


def expected(model: DecoderModel, prompt: list[int], first: int) -> list[TokenLogprobs]:
    """Of the prompt's tokens from that one on."""
    found = []
    for at in range(first, len(prompt)):
        after = sampled_after(model, prompt[:at])
        likeliest = list(after)[:TOP]
        found.append(
            TokenLogprobs(after[prompt[at]], tuple(likeliest), tuple(map(after.get, likeliest)))
        )
    return found


def told(
    model: DecoderModel, chunks: list[list[int]], first: int = 1
) -> dict[int, list[TokenLogprobs]]:
    """What the steps say of each prompt, by slot. chunks: how many tokens of each prompt a step
    computes."""
    runner, done = runner_of(model), [0] * len(PROMPTS)
    said: dict[int, list[TokenLogprobs]] = defaultdict(list)
    for step, counts in enumerate(chunks, 1):
        new = [
            NewSequence(slot, prompt, len(prompt), 0, TELLING, blocks, prompt_from=first)
            for slot, prompt in enumerate(PROMPTS)
            if step == 1
            for blocks in [[*range(4 * slot, 4 * slot + 4)]]
        ]
        works = [SlotWork(slot, done[slot], count) for slot, count in enumerate(counts) if count]
        result = runner.execute(Plan(step, step - 1, [], new, works))
        for work, slot in zip(works, result.slots, strict=True):
            assert slot.error is None
            said[work.slot] += slot.prompt_logprobs or []
            done[work.slot] += work.count
    assert done == [len(prompt) for prompt in PROMPTS]
    return said


WHOLE = [[len(prompt) for prompt in PROMPTS]]
PIECES = [[3, 0, 1], [1, 2, 6], [3, 0, 3]]


@pytest.mark.parametrize("chunks", [WHOLE, PIECES], ids=["whole", "in pieces"])
@pytest.mark.parametrize("rows", [1, 3, 128])
def test_they_are_those_of_sampling_behind_each_beginning(
    model: DecoderModel, chunks: list[list[int]], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_logprobs, "ROWS", rows)
    said = told(model, chunks)
    for slot, prompt in enumerate(PROMPTS):
        assert said[slot] == expected(model, prompt, 1)


def test_none_is_told_of_tokens_before_those_asked_for(model: DecoderModel) -> None:
    said = told(model, PIECES, first=4)
    for slot, prompt in enumerate(PROMPTS):
        assert said[slot] == expected(model, prompt, 4)
