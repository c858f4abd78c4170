"""The device's path over several ranks: threads with gloo between them stand for GPUs with NCCL."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_worker.forward import triton_build
from penstock_worker.forward.backends import choose
from penstock_worker.forward.captures import CapturedWork, EagerRecording, Work
from penstock_worker.loading.again import ready_again
from penstock_worker.loading.loaded import Loaded
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.worker import report
from tests.interpreted_triton import one_kernel_at_a_time
from tests.worker.checkpoints import load_model, tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.small_models import GROUPED, load_on_device, prompt
from tests.worker.cuda.test_device_tokens import jobs
from tests.worker.driver import Driver, Job, make_runner
from tests.worker.parallel.together import Formed, Together

SIZES = {"block_size": 4, "num_blocks": 8, "slots": 2}


@pytest.fixture(autouse=True)
def _one_kernel_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one_kernel_at_a_time(monkeypatch)


class OnDevices(Together):
    """What a setup loads on each rank."""

    def __init__(self, formed: Formed, model: CPUModel, folder: Path) -> None:
        self.formed = formed
        self._told: dict[int, list[int]] = {}
        self._last_stage = [one for one in formed.ranks if one.place.last]
        setup = msgspec.structs.replace(
            model.setup(block_size=4, num_blocks=8),
            max_num_seqs=2,
            max_num_batched_tokens=5,
            max_model_len=16,
            model_dir=str(folder),
        )

        def load(ranks: Ranks) -> Loaded:
            recipe = choose(model.prepared(), setup, 1, ranks)
            loaded = load_on_device(recipe, model.prepared(), setup, ranks)
            assert loaded.ready.num_kv_blocks == 8
            return loaded

        self.loaded = dict(zip(formed.ranks, formed.each(load), strict=True))
        self.runners = {ranks: each.runner for ranks, each in self.loaded.items()}

    def _one(self, ranks: Ranks, plan: Plan) -> Result:
        return report(self.runners[ranks].begin(plan).result(), ranks.place, 0.0)


class Counted:
    """Recordings, and how often they were launched. able: whether a capture succeeds."""

    def __init__(self, able: bool) -> None:
        self.able = able
        self.launches = 0

    def capture(self, work: Work) -> CapturedWork:
        if not self.able:
            raise RuntimeError("operation not permitted when stream is capturing")

        def counted() -> None:
            self.launches += 1
            work()

        return EagerRecording(counted)

    def renew(self) -> None:
        self.able = True


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """What the ranks' decodes are captured by; the first of them fails in its first group."""
    made: list[Counted] = []

    def captures(device: torch.device) -> Counted:
        made.append(Counted(able=bool(made)))
        return made[-1]

    monkeypatch.setattr(triton_build, "captures_of", captures)
    return made


def form_again(ours: OnDevices) -> None:
    for ranks in ours.formed.ranks:
        ranks.leave()
    for runner in ours.runners.values():
        runner.reset()
    ours.formed.form()
    ours.formed.each(lambda ranks: ready_again(ours.loaded[ranks], ranks))


def short() -> list[Job]:
    return [Job(prompt(GROUPED, 2, 3), 3)]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_tokens_are_the_references(
    tmp_path: Path, tensor: int, pipeline: int, counted: list[Counted]
) -> None:
    """In the first group a capture fails on one rank, in the next on none."""
    files = tiny_files(tmp_path, GROUPED)
    with Formed(tensor, pipeline) as formed:
        ours = OnDevices(formed, CPUModel(GROUPED, files, "float32", backend="triton"), tmp_path)
        first = Driver(ours, **SIZES, budget=5).run(short())
        launched = [each.launches for each in counted]
        # One rank without graphs is a matter of its stage, all of whose ranks go without then.
        assert launched == [0, 0] if tensor > 1 else sorted(launched) == [0, 1]
        form_again(ours)
        second = Driver(ours, **SIZES, budget=5).run(jobs())
        assert min(each.launches for each in counted) > 0
        ours.close()
    plain = make_runner(load_model(GROUPED, files, torch.float32), **SIZES)
    expected = [Driver(plain, **SIZES, budget=5).run(short())]
    plain.reset()
    expected.append(Driver(plain, **SIZES, budget=5).run(jobs()))
    for got, wanted in zip([first, second], expected, strict=True):
        assert all(job.error is None for job in got)
        assert [job.tokens for job in got] == [job.tokens for job in wanted]
