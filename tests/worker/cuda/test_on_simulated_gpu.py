"""The whole of the CUDA path, on a GPU that is simulated: loading, sizing, steps, sampling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock.protocol.to_worker import Copy, NewSequence, Plan, SlotWork
from penstock_worker.forward import buckets
from penstock_worker.forward.buckets import buckets_of
from penstock_worker.forward.captures import CUDACaptures
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.sampler.device import DeviceSampler
from penstock_worker.steps.errors import OutOfDeviceMemory
from testing.model_configs import varied
from tests.worker.checkpoints import load_model, tiny_files
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import COLLECTING, Even, Machine
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import GROUPED, NORMED, prompt
from tests.worker.device.plans import Ahead
from tests.worker.driver import GREEDY, Job, make_runner
from tests.worker.grammar.grammar_tools import EVEN, compile_now
from tests.worker.models.family_cases import read
from tests.worker.models.test_recurrent_models import read as read_recurrent

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

GIB = 1 << 30
BIASED = varied(GROUPED, architecture="qwen2", qkv_bias=True)
RECURRENT = read_recurrent("qwen3-next")
MAMBA = read_recurrent("granite-hybrid")
WIDE = varied(GROUPED, hidden_size=128, intermediate_size=256, head_dim=32)
"""Sizes that groups of weights divide."""

DRAWN = TokenSampling(5, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, logprobs=2)
COUNTED = TokenSampling(
    3,
    temperature=0.9,
    adjustments=LogitsAdjustments(
        presence=1.5, frequency=0.7, repetition=1.3, bias={7: 2.0, 9: -1.0}
    ),
)
BANNED = TokenSampling(
    9,
    temperature=1.8,
    adjustments=LogitsAdjustments(bad_words=((11,), *((a, 12) for a in range(97)))),
)
LISTED = TokenSampling(4, adjustments=LogitsAdjustments(allowed=tuple(range(0, 97, 5))))
TELLING = TokenSampling(5, temperature=1.1, prompt_logprobs=2)
ENDING = TokenSampling(8, temperature=1.4, min_tokens=3, held_back=(1, 2, 3))
ODD = TokenSampling(5, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, prompt_logprobs=2)
MANY = TokenSampling(8, logprobs=70)
"""More than the kernel tells."""


def without_windows(config: ModelConfig) -> ModelConfig:
    """In one KV group, as the plans here have it."""
    change = msgspec.structs.replace
    layers = [
        change(layer, attention=change(layer.attention, window=None)) for layer in config.layers
    ]
    return change(config, layers=tuple(layers))


@contextmanager
def machine(
    config: Any = GROUPED, files: WeightFiles | None = None, **more: Any
) -> Iterator[Machine]:
    """With shapes only."""
    with simulated(Device(GIB, computes=False, pace=1)) as device:
        made = Machine(device, config, **({} if files is None else {"files": files}), **more)
        try:
            yield made
        finally:
            made.runner.close()


def jobs() -> list[Job]:
    """One job of each kind; some are longer than a step, and one than a split of the keys."""
    wants = [GREEDY, DRAWN, COUNTED, BANNED, LISTED, ENDING, MANY]
    made = [Job(prompt(GROUPED, 9 + 4 * n, n), 5, each, n) for n, each in enumerate(wants)]
    telling = Job(prompt(GROUPED, 50, 8), 4, TELLING)
    bound = Job(prompt(GROUPED, 6, 9), 4, DRAWN, grammar=1)
    return [*made, telling, bound, Job(prompt(GROUPED, 560, 7), 3, GREEDY)]


def ahead(made: Machine, **more: Any) -> Ahead:
    sizes = {"block_size": 4, "num_blocks": made.parts.blocks, "slots": 8, "budget": 40}
    return Ahead(made, **(sizes | more))


SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {},
    "eager": {"enforce_eager": True, "dtype": "float16"},
    "int8": {"quantization": "int8", "config": WIDE},
    "int4": {"quantization": "int4", "config": WIDE, "batch_invariant": True},
    "fp8": {"quantization": "fp8", "config": WIDE, "kv_cache_dtype": "fp8"},
    "batch-invariant": {"batch_invariant": True},
    "qwen3": {"config": NORMED},
    "qwen2": {"config": BIASED},
    "experts": {"config": read("glm45"), "batch_invariant": True},
    "several residuals": {"config": without_windows(read("gemma3n"))},
    "recurrent layers": {"config": RECURRENT, "state_checkpoint_tokens": 640},
    "mamba 2": {"config": MAMBA, "state_checkpoint_tokens": 640},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_feature_and_nobody_waits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS[name]
    monkeypatch.setattr(buckets, "MAX_GRAPHS", 4)
    with machine(**settings) as made:
        compiled = set(made.device.launched)
        captured = made.device.captures
        shapes = len(buckets_of(made.setup, settings.get("config", GROUPED)).all)
        assert captured == (0 if settings.get("enforce_eager") else shapes)
        runs = ahead(made, preempt_every=7)
        assert [job.error for job in runs.run(jobs())] == [None] * len(jobs())
        assert runs.most_in_flight == 2
        assert made.device.captures == captured
        assert made.device.launched.keys() == compiled  # Whatever was asked for.
        kernels = {key[0] for key in made.device.launched}
    assert kernels >= {"_rms_norm", "attend", "combine", "_rope_write", "_sample", "_adjust"}
    assert kernels >= {"_count", "_parts", "_join", "_log_probs", "_gate_mul"}
    assert kernels >= {"_weigh_parts", "_list_survivors"}
    special = {"int8": "_weight_only", "int4": "_weight_only", "fp8": "_fp8_linear"}
    special["experts"] = "_expert_linear"
    assert special.get(name, "attend") in kernels
    assert ("_linear" in kernels) == bool(settings.get("batch_invariant"))


def test_only_what_needs_the_host_waits() -> None:
    plain = [GREEDY, DRAWN, COUNTED, LISTED, ENDING]
    with machine() as made:
        ahead(made).run([Job(prompt(GROUPED, 9, n), 6, each, n) for n, each in enumerate(plain)])
        assert made.waited == set()
        made.runner.reset()
        ahead(made).run([Job(prompt(GROUPED, 9, 1), 6, BANNED)])
        assert made.waited == COLLECTING


def test_files_come_through_pinned_buffers(tmp_path: Path) -> None:
    files = tiny_files(tmp_path, GROUPED)
    for changes in ({"dtype": "bfloat16"}, {"quantization": "int8"}):
        with machine(files=files, **changes) as made:
            assert "PinnedPlacing._send" in made.device.waits
            ahead(made).run(jobs()[:3])


@pytest.mark.slow
def test_numbers_are_the_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed late, with buffers that are poison until they were written."""
    files = tiny_files(tmp_path, GROUPED)
    tensors = load_file(files.files[0])
    tensors["model.embed_tokens.weight"][96] = torch.nan
    save_file(tensors, files.files[0])

    def few() -> list[Job]:
        return [
            Job(prompt(GROUPED, 9, 3), 3),
            Job(prompt(GROUPED, 3, 2), 3, COUNTED, 1),
            Job(prompt(GROUPED, 4, 4), 1, ODD, 2, grammar=1),
            Job([5, 96, 3], 3, GREEDY),
        ]

    sizes = {"block_size": 4, "num_blocks": 16, "slots": 4, "budget": 12}
    # Interpreted, it takes long.
    monkeypatch.setattr(DeviceSampler, "warm_up", lambda *_: None)
    with simulated(Device(GIB, pace=2)) as device:
        made = Machine(
            device, GROUPED, files, dtype="float32", max_num_seqs=4, max_num_batched_tokens=12,
            max_model_len=16, num_kv_blocks=16,
        )  # fmt: skip
        runs = Ahead(made, **sizes)
        found = runs.run(few())
        told = runs.told_of(found[2])
        made.runner.close()
    assert device.captures
    grammars = SlotGrammars(Even(97), budget=20.0)
    compile_now(grammars, 1, EVEN)
    plain = make_runner(
        load_model(GROUPED, files, torch.float32),
        block_size=4, num_blocks=16, slots=4, grammars=grammars,
    )  # fmt: skip
    runs = Ahead(plain, **sizes, depth=1)
    true = runs.run(few())
    assert [each.top_ids for each in told] == [each.top_ids for each in runs.told_of(true[2])]
    plain.close()
    assert [(job.tokens, job.error) for job in found] == [(job.tokens, job.error) for job in true]
    assert "not finite" in (found[3].error or "")
    for one, other in zip(found, true, strict=True):
        for ours, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert ours.top_ids == theirs.top_ids
                assert ours.top_logprobs == pytest.approx(theirs.top_logprobs, abs=1e-4)


def test_blocks_go_to_the_host_and_back() -> None:
    copies = [Copy("out", block, block) for block in range(20)]
    copies += [Copy("in", 3, 30), Copy("device", 30, 31), Copy("in", 4, 30)]
    admitted = [NewSequence(0, [1, 2, 3], 3, 0, GREEDY, [31])]
    with machine(host_kv_bytes=1 << 20) as made:
        assert made.parts.copies.seconds() > 0
        compiled = set(made.device.launched)
        step = made.begin(Plan(1, 0, [], admitted, [SlotWork(0, 0, 3)], copies))
        assert made.waited == set()
        assert step.result().slots[0].error is None
        assert "_copy" in {key[0] for key in compiled}
        assert made.device.launched.keys() == compiled


def test_a_step_without_room_is_lost_and_no_more() -> None:
    admitted = [NewSequence(0, [1] * 30, 30, 0, DRAWN, list(range(8)))]
    plan = Plan(1, 0, [], admitted, [SlotWork(0, 0, 30)])
    with machine() as made:
        made.device.total = made.device.allocated + 1000
        with pytest.raises(OutOfDeviceMemory):
            made.begin(plan)
        made.device.total = GIB
        made.runner.reset()
        assert made.begin(plan).result().slots[0].error is None


def test_a_capture_that_fails_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CUDACaptures.capture

    def failing(captures: CUDACaptures, work: Any) -> Any:
        runs = iter(range(2))

        def break_off() -> None:
            work()
            if next(runs):
                raise RuntimeError("operation not permitted when stream is capturing")

        return real(captures, break_off)

    monkeypatch.setattr(CUDACaptures, "capture", failing)
    with machine() as made:
        assert [job.error for job in ahead(made).run(jobs()[:4])] == [None] * 4
        assert made.device.captures == 1


LLAMA = varied(
    GROUPED,
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=2,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
)
"""Llama 3.1 8B with fewer layers, which take their turns in the same memory."""


@pytest.mark.parametrize(("utilization", "eager"), [(0.6, True), (0.9, False)])
def test_the_largest_steps_fit_beside_the_pool(
    utilization: float, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are a long context alone, with prompts, with many short pieces, and decodes of all."""
    monkeypatch.setattr(buckets, "MAX_GRAPHS", 9)  # The largest is among them.
    told = TokenSampling(0, top_p=0.9, logprobs=20, adjustments=LogitsAdjustments(presence=1.0))
    table = list(range(2048))

    def admitted(slots: range, tokens: int) -> list[NewSequence]:
        blocks = -(-(tokens + 4) // 16)
        return [NewSequence(slot, [1] * tokens, tokens, 0, told, table[:blocks]) for slot in slots]

    with simulated(Device(16 * GIB, computes=False)) as device:
        made = Machine(
            device, LLAMA, max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=32_768,
            block_size=16, num_kv_blocks=None, gpu_memory_utilization=utilization,
            enforce_eager=eager,
        )  # fmt: skip
        assert made.parts.blocks < 256 * 2048  # As many as there is room for.
        loaded = device.highest
        works = [
            [SlotWork(0, start, 8192 - 2 * (start > 20_000))] for start in range(0, 32_766, 8192)
        ]
        works.append([SlotWork(0, 32_766, 1), *(SlotWork(n, 0, 130) for n in range(1, 62))])
        works.append([SlotWork(0, 32_767, 1), *(SlotWork(n, 0, 16) for n in range(62, 256))])
        works.append([SlotWork(n, 130 if n < 62 else 16, 1) for n in range(1, 256)])
        news = [admitted(range(1), 32_766), [], [], []]
        news += [admitted(range(1, 62), 130), admitted(range(62, 256), 16), []]
        for step, (new, work) in enumerate(zip(news, works, strict=True), 1):
            result = made.begin(Plan(step, step - 1, [], new, work)).result()
            assert {each.error for each in result.slots} == {None}
        assert loaded < device.highest <= utilization * device.total
        made.runner.close()
