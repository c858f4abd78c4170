"""Adapters of mixtures of experts on the CUDA kernels: PEFT's and the reference's numbers, and a
row's own bits in any company."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.adapters import UnfitAdapter
from tests.adapter_folders import Factors, write_peft
from tests.interpreted_triton import one_kernel_at_a_time
from tests.worker.adapters.test_experts import FUSED, factors_of, made, peft_model, saved
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.adapted import Row, Served, check_logits, close
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.parallel.together import Formed
from tests.worker.weights.test_alternating import Files, config

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

ALPHA = 7.0
TOKENS = np.random.default_rng(1).integers(1, 40, 14).tolist()


def served(model: CPUModel, folders: list[Path], backend: str, **options: Any) -> Served:
    config = model.config
    return Served(model.weights, folders, backend, config=config, experts=True, **options)


def factors(model: CPUModel, rank: int, seed: int, ends: tuple[str, ...] = ("",)) -> Factors:
    """Factors by the names of the family's files."""
    router = {"gpt-oss": "mlp.router", "llama4": "feed_forward.router"}
    name = router.get(model.config.architecture.replace("_", "-"), "mlp.gate")
    found = factors_of(model.config, rank, seed, ends)
    return {re.sub(r"mlp\.gate$", name, each): pair for each, pair in found.items()}


def folders(root: Path, model: CPUModel) -> list[Path]:
    """All modules; some experts' and others; and rows with lengths of their own (DoRA)."""
    random = np.random.default_rng(2)
    long = factors(model, 6, 1, ("experts.0.down_proj", "experts.1.up_proj", "router"))
    lengths = {
        name: random.uniform(1, 2, len(up)).astype(np.float32) for name, (_, up) in long.items()
    }
    some = factors(model, 5, 3, ("experts.2.up_proj", "q_proj", "shared_expert.down_proj"))
    return [
        write_peft(root / "all", factors(model, 17, 2), alpha=ALPHA),
        write_peft(root / "some", some, alpha=ALPHA),
        write_peft(root / "long", long, alpha=ALPHA, magnitudes=lengths),
    ]


def steps() -> list[list[Row]]:
    """Prompts of three adapters and of none together, then decodes, which are captured."""
    prompts, adapters = [TOKENS[n : 2 * n + 3] for n in range(4)], [1, -1, 0, 2]
    first: list[Row] = [(prompts[n], 0, n, adapters[n]) for n in range(4)]
    decodes: list[Row] = [([7 + n], len(prompts[n]), n, adapters[n]) for n in range(4)]
    return [first, decodes[:2], [decodes[3], decodes[2]]]


@pytest.mark.parametrize("case", ["qwen2-moe", "gpt-oss", "llama4"])
def test_numbers_and_bits(tmp_path: Path, case: str) -> None:
    """With an expert that all rows have; with biases, by turns; with weighted inputs."""
    model = saved(made(case), tmp_path / "model")
    paths = folders(tmp_path, model)
    ours, theirs = (served(model, paths, backend) for backend in ("triton", "reference"))
    found = check_logits(ours, theirs, steps(), least=0.01)
    for step, mine in zip(steps(), found, strict=True):
        for row, logits in zip(step, mine, strict=True):
            assert torch.equal(ours.logits(row)[0], logits)


def test_over_packed_experts(tmp_path: Path) -> None:
    """Whose levels stay as they are in the file. The router is left alone, as activations in
    bfloat16 would choose other experts now and then."""
    files, own = Files(tmp_path), config()
    pair = factors_of(own, 5, 1, ("_proj",), size=0.1)
    paths = [write_peft(tmp_path / "a", pair, alpha=ALPHA)]
    ours = Served(files.packed, paths, "triton", config=own, experts=True, dtype="auto")
    theirs = Served(files.plain, paths, "reference", config=own, experts=True)
    rows: list[Row] = [([7, 3, 40, 11, 2], 0, 0, 0), ([5, 6, 9], 0, 1, -1)]
    found, true = ours.logits(*rows), theirs.logits(*rows)
    (without,) = theirs.logits((*rows[0][:3], -1))
    for row, mine, wanted in zip(rows, found, true, strict=True):
        assert (mine - wanted).abs().max() < 0.02 * wanted.abs().max()
        assert torch.equal(ours.logits(row)[0], mine)
    assert (without - true[0]).abs().max() > 0.05 * true[0].abs().max()


@pytest.mark.parametrize("case", ["mixtral", "llama4"])
def test_parameters_of_all_experts(tmp_path: Path, case: str) -> None:
    """They equal what PEFT computes, beside a router."""
    theirs = made(case)
    model = saved(theirs, tmp_path / "model")
    settings = {"target_modules": [], "target_parameters": [f"experts.{each}" for each in FUSED]}
    wrapped = peft_model(theirs, r=3, **settings)
    wrapped.save_pretrained(tmp_path / "adapter")
    with torch.inference_mode():
        wanted = wrapped(torch.tensor([TOKENS])).logits[0].float()
    (found,) = served(model, [tmp_path / "adapter"], "triton").logits((TOKENS, 0, 0, 0))
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_computes_late(tmp_path: Path) -> None:
    """Adapters take each other's place while steps are in flight. The host waits for none of
    it."""
    model = saved(made("qwen2-moe"), tmp_path / "model")
    paths = folders(tmp_path, model)
    rows: list[Row] = [(TOKENS[n : n + 3], 0, n, n) for n in range(3)]
    asked = [*rows, *(([5 + n], 3, n, n) for n in (2, 0, 1))]
    with simulated(Device(1 << 30, pace=2)) as device:
        late = served(model, paths, "triton", most=1)
        waits, captures = len(device.waits), device.captures
        queued = [late.logits(step, wait=False)[0] for step in asked]
        assert not device.waits[waits:]
        assert device.captures == captures > 0
        found = [each.cpu() for each in queued]
    true = served(model, paths, "reference")
    close(found, [true.logits(step)[0] for step in asked])


def test_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a part of every expert's inner dimension."""
    one_kernel_at_a_time(monkeypatch)
    model = saved(made("qwen2-moe"), tmp_path / "model")
    paths = folders(tmp_path, model)
    true = served(model, paths, "reference")
    with Formed(2) as formed:
        built = formed.each(lambda ranks: served(model, paths, "triton", ranks=ranks))
        by_rank = dict(zip(formed.ranks, built, strict=True))
        for step in steps():
            *_, found = formed.each(lambda ranks, step=step: by_rank[ranks].logits(*step))
            close(found, true.logits(*step))


def test_a_server_that_takes_none(tmp_path: Path) -> None:
    model = saved(made("mixtral"), tmp_path / "model")
    paths = folders(tmp_path, model)
    small = Served(model.weights, [], "triton", config=model.config)
    with pytest.raises(UnfitAdapter, match=r"that needs --lora-experts"):
        small.hold(paths[0])
    assert small.holds.nbytes < served(model, [], "triton").holds.nbytes / 2
