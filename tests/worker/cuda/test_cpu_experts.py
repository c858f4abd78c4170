"""Routed experts in the host's memory beside a card: the same bits wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.gguf_config import read_config
from penstock_kernels.cpu import library
from penstock_kernels.cpu.routed_experts import MOST_ROWS
from penstock_worker.forward import cpu_experts
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.layers import host_experts
from penstock_worker.layers.experts import LatentExperts, MixtureOfExperts
from penstock_worker.layers.host_experts import HostExperts, PinnedRows
from penstock_worker.layers.level_experts import CardExperts
from tests.interpreted_triton import DEVICE
from tests.kernels.cpu.sources import K_HALVES, random_source
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.gguf_writing import Writer, write
from tests.worker.models.test_gguf_families import CONVERSIONS, OWN
from tests.worker.models.test_parity_families import make_theirs

pytestmark = pytest.mark.timeout(300)

POSITIONS, EACH = 64, 4
LONG, SHORT = [7, 3, 40, 11, 2, 90, 17], [5, 21, 8]

MIXTURES = {
    "qwen3-moe-all": ("Q4_0", {"hidden_size": 64, "moe_intermediate_size": 64}),
    "gpt-oss": ("MXFP4", {"hidden_size": 64, "intermediate_size": 64}),
    "deepseek-v2-lite": ("Q8_0", {"hidden_size": 96, "moe_intermediate_size": 32}),
    "glm45": ("Q5_1", {"hidden_size": 96}),
}
"""Types of experts, and sizes that their groups divide. The last two have a layer without, and
experts that every token has."""


class Quantising(Writer):
    """Writes matrices of experts in another type."""

    kind = "Q8_0"

    def add_tensor(self, name: str, tensor: Any, *args: Any, **also: Any) -> None:
        if not name.endswith("_exps.weight"):
            super().add_tensor(name, tensor, *args, **also)
            return
        kind = gguf.GGMLQuantizationType[self.kind]
        if self.kind in K_HALVES:  # The package can't write them: other weights, of their size.
            count, outputs, inputs = tensor.shape
            data = random_source(self.kind, count * outputs, inputs).data
            super().add_tensor(name, data.reshape(count, outputs, -1), raw_dtype=kind)
            return
        super().add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)


def written(path: Path, case: str, kind: str, sizes: dict[str, int]) -> CPUModel:
    family, settings = OWN.get(case) or CASES[case]
    made = type("Made", (Quantising,), {"kind": kind})
    write(path, make_theirs(family, settings | sizes), CONVERSIONS[case], made)
    files = WeightFiles(format="gguf", files=(str(path),), dtype=kind)
    config = read_config(GGUFFile(path))
    return CPUModel(config, files, "auto", positions=POSITIONS, backend="triton")


@pytest.fixture(params=MIXTURES)
def mixture(request: pytest.FixtureRequest, tmp_path: Path) -> CPUModel:
    return written(tmp_path / "model.gguf", request.param, *MIXTURES[request.param])


@pytest.fixture(autouse=True)
def same_instructions() -> Iterator[None]:
    """Loading chooses them for its process."""
    before = library.instruction_set()
    yield
    library.use(before)


def of(model: CPUModel, experts: str) -> Any:
    setup = msgspec.structs.replace(model.setup(), cpu_experts=experts, batch_invariant=True)
    with torch.inference_mode():
        return choose(model.prepared(), setup, 2).build()(2 * EACH * model.groups)


def logits(forward: Forward, groups: int, *works: tuple[int, list[int], int]) -> Tensor:
    """Logits of all rows of a step: of each sequence its number, new tokens, and how many came
    before. Each has blocks of its own in each KV group."""
    tables = [
        [np.array([2 * group * EACH + number * EACH]) for number, _, _ in works]
        for group in range(groups)
    ]
    tokens = np.array([token for _, tokens, _ in works for token in tokens])
    starts = np.array([start for _, _, start in works])
    counts = np.array([len(tokens) for _, tokens, _ in works])
    batch = Batch(tokens, tables[0], starts, counts, tuple(tables[1:]))
    with torch.inference_mode():
        found: Tensor = forward.logits(batch, np.arange(len(tokens))).cpu()
    return found


def with_experts(config: ModelConfig) -> list[int]:
    numbers = range(config.num_layers)
    return [number for number in numbers if config.layer(number).feed_forward.experts is not None]


def placed(forward: Any, number: int) -> Any:
    found: Any = forward._model.layers[number].feed_forward
    assert isinstance(found, MixtureOfExperts)
    routed: Any = found._routed
    own: Any = routed._experts if isinstance(routed, LatentExperts) else routed
    return own.experts


def test_any_number_of_layers_on_the_host_computes_the_same(mixture: CPUModel) -> None:
    """Alone and in company, and a prompt in chunks."""
    layers, groups = with_experts(mixture.config), mixture.groups
    wanted = None
    for words in ("0", "1", "all"):
        forward = of(mixture, words)
        count = len(layers) if words == "all" else int(words)
        kinds = [HostExperts] * count + [CardExperts] * (len(layers) - count)
        assert [type(placed(forward, each)) for each in layers] == kinds
        found = logits(forward, groups, (0, LONG, 0))
        assert found.isfinite().all()
        wanted = found if wanted is None else wanted
        assert torch.equal(found, wanted)
        both = logits(forward, groups, (1, SHORT, 0), (0, LONG[:4], 0))
        assert torch.equal(both[len(SHORT) :], wanted[:4])
        rest = logits(forward, groups, (0, LONG[4:], 4))
        assert torch.equal(rest, wanted[4:])


def test_it_is_the_same_model_up_to_rounding(mixture: CPUModel) -> None:
    """Rows are rounded to bytes; otherwise the card multiplies them as bfloat16."""
    found = logits(of(mixture, "all"), mixture.groups, (0, LONG, 0))
    plain = logits(of(mixture, "off"), mixture.groups, (0, LONG, 0))
    assert not torch.equal(found, plain)
    assert (found - plain).abs().max() < 0.1 * plain.abs().max()


def test_k_quants(tmp_path: Path) -> None:
    """Of which processors with AMX have other bits by themselves."""
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "num_experts": 4}
    model = written(tmp_path / "model.gguf", "qwen3-moe-all", "Q4_K", sizes)
    here, there = (logits(of(model, words), 1, (0, SHORT, 0)) for words in ("all", "0"))
    assert torch.equal(here, there)


def test_memory_for_rows_on_their_way_is_bounded(
    mixture: CPUModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All layers share it, and more rows go through it one part after another."""
    monkeypatch.setattr(host_experts, "MOST_ROWS", 2)
    forward = of(mixture, "all")
    layers = with_experts(mixture.config)
    experts = [placed(forward, each) for each in layers]
    (pinned,) = {id(each.pinned): each.pinned for each in experts}.values()
    wide, active = mixture.config.hidden_size, experts[0].experts.active
    assert isinstance(pinned, PinnedRows)
    assert pinned.nbytes == 2 * 4 * (2 * wide + 2 * active)
    assert MOST_ROWS == 512
    found = logits(forward, mixture.groups, (0, LONG, 0))
    monkeypatch.undo()
    assert torch.equal(found, logits(of(mixture, "0"), mixture.groups, (0, LONG, 0)))


def test_a_host_without_memory_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is loaded. A layer takes 40.5 KiB, and so does each of two buffers."""
    model = written(tmp_path / "model.gguf", "qwen3-moe-all", *MIXTURES["qwen3-moe-all"])
    monkeypatch.setattr(cpu_experts, "free_memory", lambda: 4 * 41_472)
    setup = msgspec.structs.replace(model.setup(), cpu_experts="2")
    choose(model.prepared(), setup, 1)
    said = (
        "cpu_experts: the routed experts of 3 layers take 0.1 MiB in the CPU kernels' layout, "
        "pinned buffers 0.1 MiB, and 0.2 MiB are free in the host's memory; allowed are fewer "
        "layers"
    )
    with pytest.raises(StartupError, match=said):
        choose(model.prepared(), msgspec.structs.replace(setup, cpu_experts="all"), 1)
    tier = msgspec.structs.replace(setup, host_kv_bytes=1 << 20)
    with pytest.raises(StartupError, match=r"the KV cache's host tier 1.0 MiB, and 0.2 MiB are"):
        choose(model.prepared(), tier, 1)


def test_rows_that_are_no_numbers_stay_by_themselves(tmp_path: Path) -> None:
    """Their router may choose one expert twice. Memory that nobody has written gives such rows in
    a rehearsal."""
    model = written(tmp_path / "model.gguf", "qwen3-moe-all", *MIXTURES["qwen3-moe-all"])
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    broken = hidden.clone()
    broken[1], broken[3, 7] = float("nan"), float("inf")
    others = torch.tensor([0, 2, 4])
    for words in ("0", "1"):
        layer = of(model, words)._model.layers[0].feed_forward
        with torch.inference_mode():
            found, whole = layer(broken.to(DEVICE)).cpu(), layer(hidden.to(DEVICE)).cpu()
        assert found[[1, 3]].isnan().all()
        assert torch.equal(found[others], whole[others])


@pytest.mark.parametrize(
    ("change", "words", "reason"),
    [
        ({}, "4", r"cpu_experts is '4'; allowed are 0 to 3, .*, all, and auto; or off"),
        ({}, "some", r"cpu_experts is 'some'; allowed are 0 to 3"),
        ({"dtype": "bfloat16"}, "1", "must stay as a GGUF file has them; dtype is bfloat16"),
        ({"lora_experts": True}, "1", "adapters may change experts"),
        ({"attention_backend": "cpu"}, "1", "is for a model on a GPU; on cpu all of it is on the"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, Any], words: str, reason: str, tmp_path: Path
) -> None:
    model = written(tmp_path / "model.gguf", "qwen3-moe-all", *MIXTURES["qwen3-moe-all"])
    setup = msgspec.structs.replace(model.setup(), cpu_experts=words, **change)
    with pytest.raises(StartupError, match=reason):
        choose(model.prepared(), setup, 1)


def test_models_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64}
    model = written(tmp_path / "model.gguf", "qwen3-moe-all", "BF16", sizes)
    files = msgspec.structs.replace(model.weights, dtype="Q8_0")  # Most of it might be.
    floats = CPUModel(model.config, files, "auto", positions=POSITIONS, backend="triton")
    with pytest.raises(StartupError, match=r"experts.0.gate_proj.weight is stored as BF16; allow"):
        of(floats, "all")
    dense = CPUModel(read("llama-yarn"), files, "auto", backend="triton")
    setup = msgspec.structs.replace(dense.setup(), cpu_experts="all")
    with pytest.raises(StartupError, match="cpu_experts is all; the model has no experts"):
        choose(dense.prepared(), setup, 1)
