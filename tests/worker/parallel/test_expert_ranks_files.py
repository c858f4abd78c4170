"""Ranks that hold whole experts, out of files, against transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.gguf_config import read_config
from penstock_worker.forward.backends import choose
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import CASES
from tests.worker.models.gguf_writing import write
from tests.worker.models.parity import RELATIVE_TOLERANCE
from tests.worker.models.test_family_bits import TOKENS, alone
from tests.worker.models.test_gguf_families import CONVERSIONS
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_parity_on_cpu import cpu_model
from tests.worker.parallel.forward_over_ranks import ForwardOverRanks
from tests.worker.parallel.together import Formed

pytestmark = pytest.mark.timeout(120)

DENSE = {"intermediate_size": 128}
SETTINGS = {
    "qwen3-moe": {"mlp_only_layers": []},
    "gpt-oss": {},
    "deepseek-v2-lite": DENSE | {"moe_intermediate_size": 32},
    "glm45": DENSE | {"n_shared_experts": 2},
}
"""What differs from the case: parts that are still cut have at least a tile for each rank."""
IN_GGUF = {"qwen3-moe": "qwen3-moe-all"}
"""Other names of the conversions."""


@pytest.fixture(scope="module")
def two() -> Iterator[Formed]:
    with Formed(2) as formed:
        yield formed


def safetensors(folder: Path, theirs: Any, _case: str) -> CPUModel:
    theirs.save_pretrained(folder)
    return cpu_model(folder)


def gguf(folder: Path, theirs: Any, case: str) -> CPUModel:
    path = folder / "model.gguf"
    write(path, theirs, CONVERSIONS[IN_GGUF.get(case, case)])
    files = WeightFiles(format="gguf", files=(str(path),), dtype="F32")
    return CPUModel(read_config(GGUFFile(path)), files, "float32", positions=256)


@pytest.mark.parametrize("made", [safetensors, gguf])
@pytest.mark.parametrize("case", SETTINGS)
def test_two_ranks_compute_what_transformers_does(
    case: str, made: Callable[[Path, Any, str], CPUModel], tmp_path: Path, two: Formed
) -> None:
    family, settings = CASES[case]
    theirs = make_theirs(family, settings | SETTINGS[case])
    with torch.inference_mode():
        true = theirs(torch.from_numpy(TOKENS)[None]).logits[0].float()
    mine = made(tmp_path, theirs, case)
    ours = alone(ForwardOverRanks(two, replace(mine, expert_parallel=True)), mine.groups)
    allowed = RELATIVE_TOLERANCE * true.abs().amax(-1)
    assert bool(((ours - true).abs().amax(-1) <= allowed).all())
    lone = mine.forward(block_size=16, num_blocks=32 * mine.groups, threads=1)
    assert torch.equal(ours, alone(lone, mine.groups))


def test_an_expert_too_many_is_an_error_on_every_rank(tmp_path: Path, two: Formed) -> None:
    family, settings = CASES["qwen3-moe"]
    mine = safetensors(tmp_path, make_theirs(family, settings), "")
    [file] = mine.weights.files
    tensors = load_file(file)
    more = {
        name.replace("experts.0.", "experts.6."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith("model.layers.0.mlp.experts.0.")
    }
    assert len(more) == 3
    save_file(tensors | more, file)
    for rank in two.ranks:
        setup = replace(mine, expert_parallel=True).setup()
        with torch.inference_mode(), pytest.raises(UnsupportedModel, match=r"experts\.6\."):
            choose(mine.prepared(), setup, 1, rank).build()
