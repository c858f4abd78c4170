"""Log-probabilities of prompts with pictures, wherever passes that score them end: within a picture
whose tokens see one another no pass may."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.steps import prompt_logprobs
from tests.worker.driver import GREEDY
from tests.worker.vision.picture_runners import backend_of, load, runner_of
from tests.worker.vision.pictures import Part, Prepared, picture, prompt_of, theirs_of, words
from tests.worker.vision.vision_cases import CASES, both

WHOLE = ("gemma3", "gemma4", "gemma4-12b", "molmo2")
"""Models whose pictures see themselves as a whole; the last one's see one another too."""
TOLERANCE = 1e-3
TELLING = msgspec.structs.replace(GREEDY, prompt_logprobs=2)


def asked(case: str) -> list[list[Part]]:
    """Pictures among words, and behind all of them."""
    small, large = (picture(CASES[case].preparation, size, size) for size in (1, 4))
    return [[words(13, 1), large, words(6, 2), small, words(5, 3)], [words(9, 4), small]]


def scored(case: str, backend: str, folder: Path, first: int = 1) -> list[SlotResult]:
    """What one step says of all prompts, from that token on, and of a text between them."""
    _, ours = both(case)
    cpu = backend_of(ours, backend)
    runner = runner_of(ours, CASES[case].preparation, cpu=cpu)
    prompts = [prompt_of(parts) for parts in asked(case)]
    prompts.insert(1, (words(11, 5), None))
    shown = [part for parts in asked(case) for part in parts if isinstance(part, Prepared)]
    load(runner, folder, *{each.item.name: each for each in shown}.values())
    groups = 1 if cpu is None else len(cpu.recipe().kv_groups)
    new, works, free = [], [], iter(range(200))
    for slot, (tokens, media) in enumerate(prompts):
        blocks = [next(free) for _ in range(groups * -(-len(tokens) // 16))]
        new.append(
            NewSequence(
                slot, tokens, len(tokens), 0, TELLING, blocks, media=media, prompt_from=first
            )
        )
        works.append(SlotWork(slot, 0, len(tokens)))
    names = list({each.item.name: None for each in shown})
    result = runner.execute(Plan(1, 0, [], new, works, encode=names))
    runner.close()
    assert [each.error for each in result.slots] == [None] * len(prompts)
    return result.slots


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("case", [*WHOLE, "llava"])
def test_scores_are_the_same_wherever_passes_end(
    case: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undivided = scored(case, backend, tmp_path)
    late = scored(case, backend, tmp_path, first=20)
    for rows in (1, 16):
        monkeypatch.setattr(prompt_logprobs, "ROWS", rows)
        assert scored(case, backend, tmp_path) == undivided
    assert scored(case, backend, tmp_path, first=20) == late
    for whole, part in zip(undivided, late, strict=True):
        assert (whole.prompt_logprobs or [])[19:] == (part.prompt_logprobs or [])
        assert whole.token == part.token


@pytest.mark.parametrize("case", [case for case in WHOLE if case != "molmo2"])
def test_scores_are_those_of_transformers(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Molmo 2 isn't among its models."""
    monkeypatch.setattr(prompt_logprobs, "ROWS", 5)
    theirs, _ = both(case)
    found = scored(case, "reference", tmp_path)
    for parts, slot in zip(asked(case), (found[0], found[2]), strict=True):
        tokens, _ = prompt_of(parts)
        true = theirs_of(theirs, parts).log_softmax(-1)
        expected = true[torch.arange(len(tokens) - 1), tokens[1:]]
        ours = torch.tensor([each.logprob for each in slot.prompt_logprobs or []])
        assert (ours - expected).abs().max() < TOLERANCE
        assert slot.token == int(true[-1].argmax())
