"""Models in miniature that other tests of the system don't serve (compressed attention, chosen
blocks, SparseMixer's experts; with --long, text families of 2025 and 2026), served by `penstock
serve`: few blocks, so that prompts are cut, found and preempted, and a worker that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from testing.serving import Server, wait_until
from testing.tiny_models import byte_level_tokenizer, write_hub_folder
from tests.system.test_recurrent_models import FLAGS, PROMPT, ask
from tests.worker.models.family_cases import CASES
from tests.worker.models.test_parity_families import make_theirs

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

OWN_MECHANISMS = ("deepseek-v4", "minimax-m3", "phimoe")
LATE = (
    *("apertus", "trinity", "laguna", "hunyuan-dense", "hunyuan-moe", "mistral4", "flex-olmo"),
    *("granite-swa", "granite-moe-swa", "mellum2", "north-mini-code", "youtu", "bitnet"),
    "dbrx",
)
"""Cases that are served with --long, on the CPU kernels; in test_family_deaths.py, workers of all
families die in one process."""


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        *(("cpu", case) for case in OWN_MECHANISMS),
        *(pytest.param("reference", case, marks=pytest.mark.long) for case in OWN_MECHANISMS),
        *(pytest.param("cpu", case, marks=pytest.mark.long) for case in LATE),
    ],
)
def test_served_as_any_other_and_through_a_killed_worker(
    backend: str, case: str, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    family, settings = CASES[case]
    theirs = make_theirs(family, settings | {"vocab_size": 700, "eos_token_id": 2})
    write_hub_folder(tmp_path, config={})
    theirs.save_pretrained(tmp_path)
    server = start_server(
        str(tmp_path), *FLAGS, "--num-kv-blocks", "44", "--attention-backend", backend
    )
    alone = ask(server)
    ids = byte_level_tokenizer().encode(PROMPT).ids
    with torch.inference_mode():
        [true] = theirs.generate(
            torch.tensor([ids]), max_new_tokens=40, do_sample=False, eos_token_id=None
        )
    assert alone.choices[0].text == byte_level_tokenizer().decode(true[len(ids) :].tolist())
    with ThreadPoolExecutor(5) as pool:
        crowd = list(pool.map(lambda number: ask(server, number), (0, 1, 2, 0, 3)))
    for answer in (crowd[0], crowd[3]):
        assert answer.choices[0].logprobs == alone.choices[0].logprobs
    undisturbed = ask(server, temperature=0.8, seed=5, max_tokens=48).choices[0].text
    first, text = server.child("worker 0"), ""
    stream = ask(server, temperature=0.8, seed=5, max_tokens=48, stream=True)
    for count, chunk in enumerate(stream):
        text += chunk.choices[0].text if chunk.choices else ""
        if count == 8:
            os.kill(first, signal.SIGKILL)
    assert text == undisturbed
    wait_until(lambda: server.children().get("penstock: worker 0") not in (None, first))
