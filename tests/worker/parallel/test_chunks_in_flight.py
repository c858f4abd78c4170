"""Chunks of one prompt, each in the stages one step behind the one before it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.parallel.ranks import Ranks
from tests.worker.checkpoints import TINY, load_model, tiny_files
from tests.worker.driver import make_runner
from tests.worker.parallel.together import Formed, Together

pytestmark = pytest.mark.timeout(300)

PROMPT = [(7 * at) % 300 for at in range(70)]
NEW = NewSequence(
    0, PROMPT, len(PROMPT), 0, TokenSampling(11, temperature=0.9, logprobs=2), [3, 9, 4, 7, 1, 8]
)
CHUNKS = (17, 16, 20, 17)
DECODES = 3


def chunks() -> list[Plan]:
    plans, start = [], 0
    for step, count in enumerate(CHUNKS, 1):
        admitted = [NEW] if step == 1 else []
        plans.append(Plan(step, step - 1, [], admitted, [SlotWork(0, start, count)]))
        start += count
    return plans


def decode(step: int, tokens: list[int], staged: bool) -> Plan:
    start = len(PROMPT) + len(tokens) - 1
    work = SlotWork(0, start, 1, [], tokens[-1:] if staged else [])
    return Plan(step, step - 1, [], [], [work])


def alone(folder: Path) -> list[SlotResult]:
    """One process's: the prompt in one step, and the tokens after it."""
    runner = make_runner(load_model(TINY, tiny_files(folder), torch.float32))
    told = runner.execute(Plan(1, 0, [], [NEW], [SlotWork(0, 0, len(PROMPT))])).slots
    for step in range(2, DECODES + 2):
        told += runner.execute(decode(step, [each.token for each in told], False)).slots
    runner.close()
    return told


def everywhere(together: Together, plan: Plan) -> Result:
    """The last rank's."""
    results = together.formed.each(lambda ranks: together.runners[ranks].execute(plan))
    return results[-1]


POISON = 299
"""A token whose embedding isn't finite."""


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 2), (2, 2)])
def test_what_follows_a_chunk_that_failed_is_computed_by_every_stage(
    tmp_path: Path, tensor: int, pipeline: int
) -> None:
    """Only the last one knows of the failure; another sequence is in the same steps, behind it."""
    files = tiny_files(tmp_path)
    tensors = load_file(files.files[0])
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, files.files[0])
    telling = TokenSampling(3, prompt_logprobs=1)
    failing = NewSequence(1, [5, POISON, *PROMPT[:10]], 12, 0, telling, [2, 5], prompt_from=1)
    plans = chunks()
    plans[0].admitted.insert(0, failing)
    for plan in plans[:3]:
        plan.work.insert(0, SlotWork(1, 4 * (plan.step - 1), 4))
    with Formed(tensor, pipeline) as formed:
        together = Together(formed, TINY, files, num_blocks=16)
        found = formed.each(
            lambda ranks: [together.runners[ranks].execute(plan).slots for plan in plans]
        )[-1]
        together.close()
    assert [["not finite" in (slots[0].error or "")] for slots in found[:3]] == [[True]] * 3
    assert found[3][0].token == alone(tmp_path)[0].token


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 2), (2, 2)])
def test_the_first_stage_goes_on_before_the_last_has_begun(
    tmp_path: Path, tensor: int, pipeline: int
) -> None:
    true = alone(tmp_path)
    begin = threading.Event()
    with Formed(tensor, pipeline) as formed:
        together = Together(formed, TINY, tiny_files(tmp_path), num_blocks=16)

        def prefill(ranks: Ranks) -> list[Result]:
            if ranks.place.last:
                assert begin.wait(200)
            return [together.runners[ranks].execute(plan) for plan in chunks()]

        first = together.runners[formed.ranks[0]]
        jobs = [formed.pool.submit(prefill, ranks) for ranks in formed.ranks]
        until = time.monotonic() + 100
        while first.layers_done < 2 and time.monotonic() < until:  # One layer in each stage.
            time.sleep(0.01)
        ahead = first.layers_done
        begin.set()
        lead = [job.result(200) for job in jobs][-1]
        told = lead[-1].slots
        assert all(result.slots[0].token is None for result in lead[:-1])
        for step in range(len(CHUNKS) + 1, len(CHUNKS) + DECODES + 1):
            plan = decode(step, [each.token for each in told], True)
            told += everywhere(together, plan).slots
        together.close()
    assert ahead == 2, "the second chunk was not computed beside the first"
    assert [each.token for each in told] == [each.token for each in true]
    assert tensor > 1 or told == true, "stages change no bit"
