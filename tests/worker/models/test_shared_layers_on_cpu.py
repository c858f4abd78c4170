"""Layers that read another one's keys and values, with inputs of their own, with experts beside a
feed-forward, and several residuals, on the CPU kernels: bits over long contexts, quantised weights,
every instruction set, and files that have more or less than the layers need."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.model.kv_layout import kv_layout
from penstock.model.prepared_model import WeightFiles
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.program import Buffer, PhaseKind, Program
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.forward.cpu.program import compile_program
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.forward.interface import Batch, Forward
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.forgetful import Course, check
from tests.worker.models.parity import compare
from tests.worker.models.test_family_bits import NO_FILES, in_chunks_and_company, made
from tests.worker.models.test_family_bits import alone as alone_in
from tests.worker.models.test_parity_families import make_theirs, random_prompts
from tests.worker.models.test_parity_on_cpu import cpu_model
from tests.worker.random_weights import RandomWeights

pytestmark = pytest.mark.timeout(120)

LONG = Course(
    np.random.default_rng(4).integers(0, SIZES["vocab_size"], 530),
    (1, 300, 1, 1, 190, 36, 1),
    block_size=16,
    blocks=8 * 34,
)
KEPT = {"dtype": "auto", "quantization": "int8", "kv_cache_dtype": "int8"}
"""int8 weights and cache."""


@pytest.fixture
def random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "open_weights", lambda *ignored, **also: RandomWeights())


def random_model(case: str, positions: int = 1024, **settings: Any) -> CPUModel:
    files = WeightFiles(format="safetensors", files=(), dtype="float32")
    return CPUModel(read(case), files, positions=positions, **({"dtype": "float32"} | settings))


@pytest.mark.slow
@pytest.mark.usefixtures("random_weights")
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("gemma4-shared-kv", {}),
        ("gemma4-experts", KEPT),
        ("gemma4-alike", {"dtype": "bfloat16"}),
        ("gemma3n", {"dtype": "bfloat16", "kv_cache_dtype": "int8"}),
        ("gemma3n-three-streams", {}),
    ],
)
def test_bits_over_several_splits(case: str, settings: dict[str, Any]) -> None:
    """Whole on one thread; and in chunks, in company and over blocks that are taken away, where two
    threads share the splits of a decode."""
    model = random_model(case, **settings)

    def forward(threads: int) -> Forward:
        return model.forward(block_size=16, num_blocks=LONG.blocks, threads=threads)

    layout = kv_layout(model.config, model.positions)
    assert len(layout.groups) > 1
    with torch.inference_mode():
        tables = [np.arange(34) + 34 * group for group in range(len(layout.groups))]
        batch = Batch(
            LONG.tokens,
            [tables[0]],
            np.array([0]),
            np.array([530]),
            tuple([each] for each in tables[1:]),
        )
        true = in_torch(forward(1).logits(batch, np.arange(530)))
        assert bool(true.isfinite().all())
        assert true.std() > 0
    check(Same(true), lambda: forward(2), layout, LONG)


class Same:
    """A forward pass that says what was computed before."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def logits(self, batch: Batch, rows: np.ndarray) -> torch.Tensor:
        return self._logits


@pytest.mark.usefixtures("random_weights")
@pytest.mark.parametrize("case", ["gemma4-shared-kv", "gemma4-experts", "gemma3n"])
def test_int8_weights(case: str) -> None:
    """They round about four times as much as bfloat16 does, and a row's bits are its own."""
    model = random_model(case, positions=256, **KEPT)
    groups = model.groups
    one = alone_in(made(model, threads=1), groups)
    assert torch.equal(one, in_chunks_and_company(made(model, threads=2), groups))
    true, halves = (
        alone_in(made(random_model(case, positions=256, dtype=dtype), threads=2), groups)
        for dtype in ("float32", "bfloat16")
    )
    apart, usual = ((each - true).norm(dim=-1).median() for each in (one, halves))
    assert 0 < float(apart) < 8 * float(usual)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gemma4-shared-kv", "gemma4-experts", "gemma3n"])
def test_on_each_instruction_set(isa: str, case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*CASES[case])
    theirs.save_pretrained(tmp_path)
    prompts = random_prompts()[2::3]
    assert compare(cpu_model(tmp_path), theirs, prompts, 6) >= len(prompts) * 2


def logits_of(folder: Path) -> torch.Tensor:
    model = cpu_model(folder)
    return alone_in(made(model, threads=2), model.groups)


def saved(case: str, folder: Path) -> dict[str, torch.Tensor]:
    make_theirs(*CASES[case]).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
def test_keys_that_no_layer_reads_change_nothing(tmp_path: Path) -> None:
    tensors = saved("gemma4-shared-kv", tmp_path)
    true = logits_of(tmp_path)
    at = "model.layers.4.self_attn"
    extra = {f"{at}.{name}_proj.weight": torch.randn(64, 72) for name in "kv"}
    extra[f"{at}.k_norm.weight"] = torch.randn(32)
    save_file(tensors | extra, tmp_path / "model.safetensors")
    assert torch.equal(logits_of(tmp_path), true)


@pytest.mark.slow
def test_ids_beyond_the_table_of_inputs_have_its_first_row(tmp_path: Path) -> None:
    tensors, name = saved("gemma4-shared-kv", tmp_path), "model.embed_tokens_per_layer.weight"
    tensors[name][150:] = tensors[name][0]
    save_file(tensors, tmp_path / "model.safetensors")
    true = logits_of(tmp_path)
    save_file(tensors | {name: tensors[name][:150].clone()}, tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    said = '"vocab_size_per_layer_input": '
    assert f"{said}199" in path.read_text()
    path.write_text(path.read_text().replace(f"{said}199", f"{said}150"))
    assert torch.equal(logits_of(tmp_path), true)


def test_a_block_has_room_for_the_widest_layer() -> None:
    config = read("gemma4-shared-kv")  # three of five layers have keys and values
    recipe = CPUModel(config, NO_FILES, "float32", positions=1024).recipe()
    assert recipe.block_bytes == 2 * (2 * 32) * 4 * 16 * len(config.layers[:1])


@pytest.fixture(scope="module")
def program() -> Program:
    config = read("gemma3n")
    return compile_program(config, CPUWeights(config, RandomWeights(), None, 1).read(64))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PhaseKind.HEADS, {"whole": True}),
        (PhaseKind.MAKE_INPUT, {"first": 10_000}),
        (PhaseKind.MAKE_INPUT, {"first": -1}),
        (PhaseKind.GATE_BY, {"beside": Buffer.INNER}),
        (PhaseKind.GATE_BY, {"first": 10_000}),
        (PhaseKind.GATE_BY, {"first": -1}),
        (PhaseKind.GATE_BY, {"matrices": (None, None)}),
        (PhaseKind.GATE_BY, {"activation": "clamped_swiglu"}),
        (PhaseKind.CUT_GATE, {"width": 0}),
        (PhaseKind.CUT_GATE, {"width": 10_000}),
        (PhaseKind.INPUTS_OF_LAYERS, {"width": 7}),
        (PhaseKind.INPUTS_OF_LAYERS, {"target": Buffer.INPUT}),
        (PhaseKind.INPUTS_OF_LAYERS, {"norm": None}),
        (PhaseKind.BEGIN_STREAMS, {"streams": None}),
        (PhaseKind.BEGIN_STREAMS, {"width": 97}),
        (PhaseKind.PREDICT, {"streams": {"count": 65}}),
        (PhaseKind.PREDICT, {"streams": {"active": 4}}),
        (PhaseKind.PREDICT, {"streams": {"router": None}}),
        (PhaseKind.PREDICT, {"target": Buffer.STREAMS}),
        (PhaseKind.PREDICT, {"norm": None}),
        (PhaseKind.CORRECT, {"streams": {"correction": None}}),
        (PhaseKind.CORRECT, {"target": Buffer.INPUT}),
        (PhaseKind.JOIN_PATH, {"beside": Buffer.RESIDUAL}),
        (PhaseKind.JOIN_PATH, {"third_norm": None}),
        (PhaseKind.ADD_TO_OTHERS, {"norm": None}),
        (PhaseKind.END_STREAM, {"source": Buffer.RESIDUAL}),
    ],
    ids=str,
)
def test_phases_of_shared_layers_with_wrong_sizes_are_refused(
    kind: PhaseKind, fields: dict[str, Any], program: Program
) -> None:
    phases = list(program.phases)
    # The last layer has no keys of its own.
    at = max(number for number, phase in enumerate(phases) if phase.kind is kind)
    if isinstance(fields.get("streams"), dict):
        own = phases[at].streams
        assert own is not None
        other: dict[str, Any] = fields["streams"]
        unread = dict.fromkeys(("router", "prediction", "correction", "output_scale"))
        if "count" in other:  # coefficients of another shape are refused before
            other = unread | other
        fields = {"streams": dataclasses.replace(own, **other)}
    phases[at] = dataclasses.replace(phases[at], **fields)
    with pytest.raises(ValueError, match=rf"\({kind.name}\) doesn't fit"):
        Decoder(Program(tuple(phases), program.vocab), 16, 1, cache="float32", threads=1)


def test_coefficients_of_another_shape_are_refused(program: Program) -> None:
    streams = next(phase.streams for phase in program.phases if phase.kind is PhaseKind.PREDICT)
    assert streams is not None
    with pytest.raises(ValueError, match="coefficients of streams"):
        dataclasses.replace(streams, count=5).struct()
