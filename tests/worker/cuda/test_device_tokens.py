"""Forward pass, sampler, copies and runner of a device together, against the reference's tokens."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from penstock.protocol.common import TokenSampling
from penstock_worker.forward.backends import choose
from tests.worker.checkpoints import load_model, tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.small_models import GROUPED, load_on_device, prompt
from tests.worker.driver import Driver, Job, make_runner

pytest.importorskip("penstock_worker.steps.generate")
pytest.importorskip("penstock_worker.sampler.device")
pytest.importorskip("penstock_worker.layers.triton_ops")

SAMPLED = TokenSampling(5, temperature=0.9, top_p=0.9, logprobs=2)


def jobs() -> list[Job]:
    return [Job(prompt(GROUPED, 7, 1), 4), Job(prompt(GROUPED, 3, 2), 3, SAMPLED)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_a_setup_loads_gives_the_references_tokens(tmp_path: Path) -> None:
    files = tiny_files(tmp_path, GROUPED)
    ours = CPUModel(GROUPED, files, "float32", backend="triton")
    setup = msgspec.structs.replace(
        ours.setup(block_size=4, num_blocks=8),
        max_num_seqs=2,
        max_num_batched_tokens=5,
        max_model_len=16,
        model_dir=str(tmp_path),
    )
    recipe = choose(ours.prepared(), setup, 1)
    loaded = load_on_device(recipe, ours.prepared(), setup)
    assert loaded.ready.num_kv_blocks == 8
    sizes = {"block_size": 4, "num_blocks": 8, "slots": 2}
    try:
        got = Driver(loaded.runner, **sizes, budget=5).run(jobs())
    finally:
        loaded.runner.close()
    plain = make_runner(load_model(GROUPED, files, torch.float32), **sizes)
    expected = Driver(plain, **sizes, budget=5).run(jobs())
    assert [job.error for job in got] == [None, None]
    assert [job.tokens for job in got] == [job.tokens for job in expected]
