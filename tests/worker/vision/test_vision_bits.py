"""A prompt with pictures has the same bits alone, in company, in any chunks, and behind a prefix
that is found in the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from penstock.protocol.media import Media
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from tests.worker.driver import GREEDY, Driver, Job, LogitsOf
from tests.worker.vision.picture_runners import backend_of, load, runner_of
from tests.worker.vision.pictures import Part, Prepared, job_of, picture, prompt_of, words
from tests.worker.vision.vision_cases import CASES, both

QUICK = (
    "llava",
    "idefics3",
    "qwen2.5-vl",
    "qwen3-vl",
    "qwen3.5",
    "glm4v",
    "minimax-m3",
    "mistral3",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4-clipped-with-inputs-of-layers",
    "gemma4-12b",
    "lighton-ocr",
    "lfm2-vl",
    "granite-vision",
    "paddleocr-vl",
    "kimi-k25",
    "kimi-vl",
    "minicpm-v",
    "minicpm-v-2.6",
    "command-a-vision",
    "aya-vision",
    "qwen3-omni",
    "qwen2.5-omni",
    "granite4-vision",
    "qianfan-ocr",
    "deepseek-vl",
    "deepseek-vl-hybrid",
    "janus",
    "janus-of-makers",
    "deepseek-ocr",
    "deepseek-ocr2",
    "phi3-v",
    "phi4-multimodal",
    "step-3.7",
    "molmo2",
    "molmo2-o",
)
ATTENDING = tuple(case for case in QUICK if case not in ("lfm2-vl", "qwen3.5", "minicpm-v"))
"""Those without states of recurrent layers, which a prefix in KV blocks doesn't have."""
BACKENDS = ("reference", "cpu")
WANTED = 6


def asked(case: str) -> list[Part]:
    small, large = (picture(CASES[case].preparation, size, size) for size in (1, 4))
    return [words(13, 1), large, words(6, 2), small, words(21, 3)]


def run(
    case: str,
    backend: str,
    folder: Path,
    *,
    budget: int,
    company: int = 0,
    seed: int = 0,
    preempt_every: int = 0,
) -> tuple[Job, torch.Tensor]:
    """The prompt's answer, and every logit of it. preempt_every: so many steps it starts over, as
    long as it has no token."""
    _, ours = both(case)
    vision = ours.config.vision
    assert vision is not None
    seen = LogitsOf()
    cpu = backend_of(ours, backend)
    runner = runner_of(ours, CASES[case].preparation, observer=seen, cpu=cpu)
    others = [picture(CASES[case].preparation, 2, 50 + number) for number in range(company)]
    shown = {part.item.name: part for part in asked(case) if isinstance(part, Prepared)}
    load(runner, folder, *shown.values(), *others)
    driver = Driver(runner, num_blocks=128, slots=8, budget=budget, seed=seed)
    # In another order among others.
    names = [*shown, *(each.item.name for each in others)]
    driver.encode = names[::-1] if company else names
    mine = job_of(asked(case), WANTED, whole_spans=vision.spans_whole)
    jobs = [
        job_of([words(3 + n, n), each, words(9, n)], WANTED, whole_spans=vision.spans_whole)
        for n, each in enumerate(others)
    ]
    jobs += [Job(words(30, 90 + n), WANTED) for n in range(company)]
    slot = 0
    while not mine.done:
        if preempt_every and mine.slot is not None and driver.step % preempt_every == 0:
            driver._preempt([mine])
        driver._step([job for job in (mine, *jobs) if not job.done])
        slot = slot if mine.slot is None else mine.slot
    assert mine.error is None
    return mine, seen.of(slot)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", QUICK)
def test_alone_in_company_and_in_chunks(case: str, backend: str, tmp_path: Path) -> None:
    one, logits = run(case, backend, tmp_path, budget=512)
    _, media = prompt_of(asked(case))
    assert media is not None
    least = media.spans[-1].end - media.spans[0].offset if media.joined else 0
    for budget, company in ((512, 3), (max(29, least), 0), (max(33, least + 4), 3)):
        other, found = run(case, backend, tmp_path, budget=budget, company=company, seed=budget)
        assert other.tokens == one.tokens
        assert torch.equal(found, logits), (budget, company)


@pytest.mark.parametrize("backend", BACKENDS)
def test_when_it_is_preempted(backend: str, tmp_path: Path) -> None:
    """It is computed anew from its beginning, with the encodings that are kept."""
    case = "qwen2.5-vl"
    one, logits = run(case, backend, tmp_path, budget=512)
    other, found = run(case, backend, tmp_path, budget=40, preempt_every=4)
    assert other.preempted
    assert other.tokens == one.tokens
    assert torch.equal(found, logits)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ATTENDING)
def test_behind_a_prefix_that_ends_within_an_item(case: str, backend: str, tmp_path: Path) -> None:
    """Another sequence has the first block's keys and values, and goes on from there."""
    _, ours = both(case)
    seen = LogitsOf()
    cpu = backend_of(ours, backend)
    runner = runner_of(ours, CASES[case].preparation, observer=seen, cpu=cpu)
    parts = asked(case)
    shown = {part.item.name: part for part in parts if isinstance(part, Prepared)}
    load(runner, tmp_path, *shown.values())
    tokens, media = prompt_of(parts)
    assert media is not None
    assert media.spans[0].offset < 16 < media.spans[0].end
    groups = 1 if cpu is None else len(cpu.recipe().kv_groups)
    count = -(-len(tokens) // 16)
    blocks = [at + 40 * group for group in range(groups) for at in range(count)]
    again = [at + 20 * (at % 40 > 0) for at in blocks]  # the first of each group is the same
    runner.execute(
        Plan(1, 0, [], [new(0, tokens, media, blocks)], [work(0, 0, tokens)], encode=list(shown))
    )
    runner.execute(Plan(2, 1, [], [new(1, tokens, media, again)], [work(1, 16, tokens)]))
    whole = seen.of(0)
    behind = torch.stack([seen.by_slot[1][at] for at in range(16, len(tokens))])
    assert torch.equal(behind, whole[16:])


def new(slot: int, tokens: list[int], media: Media, blocks: list[int]) -> NewSequence:
    return NewSequence(slot, tokens, len(tokens), 0, GREEDY, blocks, media=media)


def work(slot: int, start: int, tokens: list[int]) -> SlotWork:
    return SlotWork(slot, start, len(tokens) - start)


def test_a_fork_has_its_siblings_pictures(tmp_path: Path) -> None:
    """A sequence that is like another has no media of its own in the plan."""
    _, ours = both("qwen2-vl")
    seen = LogitsOf()
    runner = runner_of(ours, CASES["qwen2-vl"].preparation, observer=seen)
    parts = asked("qwen2-vl")
    shown = {part.item.name: part for part in parts if isinstance(part, Prepared)}
    load(runner, tmp_path, *shown.values())
    tokens, media = prompt_of(parts)
    assert media is not None
    blocks = list(range(-(-len(tokens) // 16)))
    fork = NewSequence(1, [], 0, 1, GREEDY, [each + 20 for each in blocks], like=0)
    plan = Plan(
        1,
        0,
        [],
        [new(0, tokens, media, blocks), fork],
        [work(0, 0, tokens), work(1, 0, tokens)],
        encode=list(shown),
    )
    runner.execute(plan)
    assert torch.equal(seen.of(0), seen.of(1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_text_has_the_bits_of_a_model_without_a_tower(backend: str, tmp_path: Path) -> None:
    """So it has beside prompts with pictures."""
    _, ours = both("qwen2-vl")
    runs = []
    for beside in (False, True):
        seen = LogitsOf()
        cpu = backend_of(ours, backend)
        runner = runner_of(ours, CASES["qwen2-vl"].preparation, observer=seen, cpu=cpu)
        jobs = [Job(words(40, 1), WANTED)]
        driver = Driver(runner, num_blocks=128, slots=8, budget=512)
        if beside:
            shown = picture(CASES["qwen2-vl"].preparation, 2, 1)
            load(runner, tmp_path, shown)
            driver.encode = [shown.item.name]
            jobs.append(job_of([words(3, 2), shown, words(5, 3)], WANTED))
        slot = None
        while any(not job.done for job in jobs):
            driver._step([job for job in jobs if not job.done])
            slot = jobs[0].slot if slot is None else slot
        assert slot is not None
        runs.append(seen.of(slot))
    assert torch.equal(*runs)
