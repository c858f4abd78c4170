"""Adapters on the CUDA kernels: the reference's numbers, a row's own bits in any company, and
places that adapters take in turns."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.from_worker import AdapterReady
from penstock.protocol.worker_resources import LoadAdapter
from penstock_worker.adapters.fitting import fitted
from penstock_worker.adapters.models import adaptable_decoder
from penstock_worker.adapters.slot_adapters import SlotAdapters
from penstock_worker.forward.backends import choose
from penstock_worker.forward.buckets import buckets_of
from penstock_worker.forward.queued import TritonForward
from tests.adapter_folders import write_peft
from tests.interpreted_triton import one_kernel_at_a_time
from tests.worker.adapters.rig import factors_of
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.adapted import BLOCK, CONFIG, Row, Served, words
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import GROUPED, load_on_device
from tests.worker.driver import Driver, Job
from tests.worker.parallel.together import Formed

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

ADAPTERS = ((5, ("q_proj", "v_proj", "down_proj")), (17, ()), (8, ("gate_proj", "o_proj")))
"""Rank, and which modules; no names: all."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> WeightFiles:
    return tiny_files(tmp_path_factory.mktemp("model"), CONFIG)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        write_peft(folder / str(rank), factors_of(CONFIG, rank, rank, names), alpha=12.0)
        for rank, names in ADAPTERS
    ]


def test_numbers_and_bits(files: WeightFiles, folders: list[Path]) -> None:
    """Prompts of three adapters and of none together, then decodes, which are captured, in other
    company; a graph that was captured for some adapters serves others."""
    ours, theirs = (Served(files, folders, backend) for backend in ("triton", "reference"))
    prompts = [words(n, 3 + n) for n in range(4)]
    adapters = [1, -1, 0, 2]
    first: list[Row] = [(prompts[n], 0, n, adapters[n]) for n in range(4)]
    decodes: list[Row] = [([7 + n], len(prompts[n]), n, adapters[n]) for n in range(4)]
    steps = [first, decodes[:2], [decodes[3], decodes[2]]]
    found, true = ([each.logits(*step) for step in steps] for each in (ours, theirs))
    for one, other in zip(found, true, strict=True):
        for mine, wanted in zip(one, other, strict=True):
            assert (mine - wanted).abs().max() < 1e-4 * wanted.abs().max()
    assert isinstance(ours.forward, TritonForward)
    assert ours.forward._graphs is not None
    assert len(ours.forward._graphs) == len(buckets_of(ours.setup, GROUPED).all)
    for n in (0, 3):
        assert torch.equal(ours.logits(first[n])[0], found[0][n])
        assert torch.equal(ours.logits(decodes[n])[0], found[1][0] if n == 0 else found[2][0])


def test_more_adapters_than_places(files: WeightFiles, folders: list[Path]) -> None:
    """Each comes back as it was."""
    served = Served(files, folders, "triton", most=2)
    rows: list[Row] = [(words(n, 4), 0, n, n) for n in range(3)]
    wanted = [served.logits(row)[0] for row in rows]
    for order in ((0, 1), (2, 0), (1, 2)):
        found = served.logits(*(rows[n] for n in order))
        for n, logits in zip(order, found, strict=True):
            assert torch.equal(logits, wanted[n])
    with pytest.raises(RuntimeError, match="at most 2"):
        served.logits(*rows)


def test_what_cant_be_held_is_refused(files: WeightFiles, tmp_path: Path) -> None:
    """Numbers that the activations' type can't hold; and a module that is computed otherwise."""
    served = Served(files, [], "triton")
    factors = factors_of(CONFIG, 4, 1, ("q_proj",))
    large = {name: (down, up * np.float32(1e38)) for name, (down, up) in factors.items()}
    _, adapter = read_adapter(write_peft(tmp_path, large, alpha=1e3))
    modules = fitted(adapter, adaptable_decoder(CONFIG), 17)
    with pytest.raises(UnfitAdapter, match="too large"):
        served.holds.hold(modules)
    with pytest.raises(
        UnfitAdapter, match=r"changes layers\.0\.norm, which is not supported on a GPU"
    ):
        served.holds.hold({"layers.0.norm": next(iter(modules.values()))})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_places_are_written_behind_the_steps_that_read_them(
    files: WeightFiles, folders: list[Path]
) -> None:
    """On a simulated GPU, which computes late: adapters take each other's place while steps are in
    flight, in captured decodes."""
    rows: list[Row] = [(words(n, 2), 0, n, n) for n in range(2)]
    decodes: list[Row] = [([5 + n], 2, n, n) for n in range(2)]
    steps = [*rows, *decodes, *decodes]
    with simulated(Device(1 << 30, pace=2)) as device:
        late = Served(files, folders[:2], "triton", most=1)
        queued = [late.logits(step, wait=False)[0] for step in steps]
        assert device.captures == len(buckets_of(late.setup, GROUPED).all)
        found = [each.cpu() for each in queued]
    true = Served(files, folders[:2], "reference")
    for step, mine in zip(steps, found, strict=True):
        (wanted,) = true.logits(step)
        assert (mine - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_ranks_share_what_is_added(
    files: WeightFiles,
    folders: list[Path],
    tensor: int,
    pipeline: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_kernel_at_a_time(monkeypatch)
    first: list[Row] = [(words(n, 3), 0, n, n) for n in range(2)]
    steps = [first, [([6], 3, 1, 1), ([5], 3, 0, -1)]]
    true = Served(files, folders, "reference")
    with Formed(tensor, pipeline) as formed:
        made = formed.each(lambda ranks: Served(files, folders, "triton", ranks=ranks))
        by_rank = dict(zip(formed.ranks, made, strict=True))
        for step in steps:
            *_, found = formed.each(lambda ranks, step=step: by_rank[ranks].logits(*step))
            for mine, wanted in zip(found, true.logits(*step), strict=True):
                assert (mine - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_a_worker_loads_and_applies_them(
    files: WeightFiles, folders: list[Path], tmp_path: Path
) -> None:
    """Beside a sequence without adapter, greedy tokens are the reference's."""
    model = CPUModel(CONFIG, files, "float32", backend="triton", max_loras=1, max_lora_rank=17)
    setup = msgspec.structs.replace(
        model.setup(block_size=BLOCK, num_blocks=8),
        max_num_seqs=2,
        max_num_batched_tokens=5,
        max_model_len=16,
        model_dir=str(tmp_path),
    )
    recipe = choose(model.prepared(), setup, 1)
    loaded = load_on_device(recipe, model.prepared(), setup)
    runner, answers = loaded.runner, SimpleQueue[Any]()
    digest, _ = read_adapter(folders[1])
    runner.feature(SlotAdapters).load(LoadAdapter(digest, str(folders[1])), answers.put)
    assert answers.get(timeout=30) == AdapterReady(digest)
    jobs = [Job(words(n, 3), 4, adapter=digest * n) for n in range(2)]
    Driver(runner, block_size=BLOCK, num_blocks=8, slots=2, budget=5).run(jobs)
    true = Served(files, folders, "reference")
    for number, job in enumerate(jobs):
        tokens = list(job.prompt)
        for _ in range(4):
            (logits,) = true.logits((tokens, 0, 0, 2 * number - 1))
            tokens.append(int(logits[-1].argmax()))
        assert job.error is None
        assert job.tokens == tokens[3:]
    runner.close()
