"""Keys and values in FP8 with a scale for each head: the checkpoint's, or of a trial step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.to_worker import RankGroup, Setup
from penstock_worker.forward.backends import choose
from penstock_worker.forward.triton import MARGIN
from penstock_worker.forward.triton_build import TritonBuild
from penstock_worker.loading.calculated_scales import check_calculated
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.shard import shard_of
from penstock_worker.weights.cache_scales import cache_scale, stored_scales
from penstock_worker.weights.opening import open_weights
from testing.model_configs import varied
from tests.interpreted_triton import DEVICE
from tests.worker.checkpoints import tiny_files, tiny_tensors
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.small_models import BLOCKS, GROUPED, batch, prompt

SMALL, LARGE = 2.0**-14, 2.0**10
HEAD = GROUPED.head_dim


def uneven(config: ModelConfig) -> dict[str, Tensor]:
    """The tiny model with values of its heads that FP8 can't hold: those of head 0 are tiny, those
    of head 1 too large. What projects them back makes up for it."""
    tensors = tiny_tensors(config)
    factors = torch.tensor([SMALL, LARGE]).repeat_interleave(HEAD)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}.self_attn"
        tensors[f"{prefix}.v_proj.weight"] *= factors[:, None]
        tensors[f"{prefix}.o_proj.weight"] /= factors.view(2, HEAD).repeat_interleave(2, 0).view(-1)
    return tensors


def files_of(folder: Path, tensors: dict[str, Tensor]) -> WeightFiles:
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return WeightFiles(format="safetensors", files=(str(path),), dtype="float32")


def setup_of(model: CPUModel, **changes: Any) -> Setup:
    setup = model.setup(block_size=4, num_blocks=BLOCKS)
    small = {"max_num_seqs": 2, "max_num_batched_tokens": 24, "max_model_len": 64}
    return msgspec.structs.replace(setup, **small, **changes)


def built(files: WeightFiles, **changes: Any) -> TritonBuild:
    model = CPUModel(GROUPED, files, "float32", backend="triton")
    changed = {"kv_cache_dtype": "fp8", **changes}
    with torch.inference_mode():
        found = choose(model.prepared(), setup_of(model, **changed), 1).build()
    assert isinstance(found, TritonBuild)
    return found


def logits(build: TritonBuild) -> Tensor:
    """Logits of a prompt in two chunks and a decode."""
    tokens, table, rows = prompt(GROUPED, 22, 5), list(range(6)), []
    with torch.inference_mode():
        forward = build(BLOCKS)
        for start, end in ((0, 13), (13, 21), (21, 22)):
            step = batch((tokens[start:end], table, start))
            rows.append(forward.logits(step, np.arange(end - start)).cpu())
    return torch.cat(rows)


def test_calculated_scales_keep_what_fp8_loses(tmp_path: Path) -> None:
    """A model whose values fit FP8 loses as little to it as one whose values are made to fit."""
    (tmp_path / "uneven").mkdir()
    files, plain = files_of(tmp_path / "uneven", uneven(GROUPED)), tiny_files(tmp_path, GROUPED)
    exact = logits(built(plain, kv_cache_dtype="float32"))
    usual = (logits(built(plain)) - exact).abs().mean()
    scaled = built(files, calculate_kv_scales=True)
    assert (logits(scaled) - exact).abs().mean() < 1.1 * usual
    assert (logits(built(files)) - exact).abs().mean() > 3 * usual
    for scales in scaled.scales:
        assert scales.value[1] / scales.value[0] > LARGE / SMALL / 16
        both = torch.cat((scales.key, scales.value)).cpu()
        assert torch.equal(torch.frexp(both)[0], torch.full((4,), 0.5))


def test_a_scale_is_twice_what_the_largest_number_needs(tmp_path: Path) -> None:
    """Rounded up to a power of two: recalculated by hand from the first layer's values."""
    tensors = tiny_tensors(GROUPED)
    scaled = built(files_of(tmp_path, tensors), calculate_kv_scales=True)
    tokens = torch.arange(24) * 2_654_435_761 % GROUPED.vocab_size
    hidden = tensors["model.embed_tokens.weight"][tokens]
    normed = hidden * (hidden.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    normed *= tensors["model.layers.0.input_layernorm.weight"]
    values = (normed @ tensors["model.layers.0.self_attn.v_proj.weight"].T).view(24, 2, HEAD)
    needed = values.abs().amax((0, 2)) * MARGIN / 448
    assert torch.equal(scaled.scales[0].value.cpu(), 2 ** needed.log2().ceil())


def test_the_checkpoints_scales_are_used(tmp_path: Path) -> None:
    """For all heads of the first layer's keys and for each of its values, and none otherwise."""
    tensors = uneven(GROUPED)
    prefix = "model.layers.0.self_attn"
    tensors[f"{prefix}.k_scale"] = torch.tensor(0.5)
    tensors[f"{prefix}.v_scale"] = torch.tensor([SMALL, LARGE], dtype=torch.bfloat16).view(2, 1, 1)
    tensors["model.layers.1.self_attn.v_proj.output_scale"] = torch.tensor([3.0])
    files = files_of(tmp_path, tensors)
    first, second = built(files, calculate_kv_scales=True).scales
    assert (first.key.tolist(), first.value.tolist()) == ([0.5, 0.5], [SMALL, LARGE])
    assert (second.key.tolist(), second.value.tolist()) == ([1.0, 1.0], [3.0, 3.0])
    assert not built(files, kv_cache_dtype="auto").scales  # They are read, and of no use.


@pytest.mark.parametrize(
    ("scales", "said"),
    [
        (torch.ones(3), r"self_attn\.v_scale has shape \(3,\); .* each of 2 KV heads"),
        (torch.tensor([1.0, 0.0]), "aren't finite and positive"),
        (torch.tensor(float("nan")), "aren't finite and positive"),
    ],
)
def test_scales_that_mean_nothing_are_refused(tmp_path: Path, scales: Tensor, said: str) -> None:
    tensors = tiny_tensors(GROUPED) | {"model.layers.1.self_attn.v_proj.v_scale": scales}
    with pytest.raises(UnsupportedModel, match=said):
        built(files_of(tmp_path, tensors))


def test_a_rank_has_the_scales_of_its_heads(tmp_path: Path) -> None:
    config = varied(GROUPED, num_heads=8, num_kv_heads=4, head_dim=8)
    own = {"model.layers.1.self_attn.v_scale": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    weights = open_weights(files_of(tmp_path, own), config, torch.float32, device=DEVICE)
    found = stored_scales(weights, shard_of(config, RankPlace(2, 1, 1)))
    assert found is not None
    assert [value.tolist() for _, value in found] == [[1.0, 1.0], [3.0, 4.0]]


def test_names_of_scales() -> None:
    beside = "layers.7.self_attn."
    for name in ("k_scale", "k_proj.k_scale", "k_proj.output_scale", "qkv_proj.k_scale"):
        assert cache_scale(beside + name) == f"{beside}k_scale"
    assert cache_scale("layers.7.attn.kv_scale") == f"{beside}kv_scale"
    for name in ("q_proj.output_scale", "v_proj.weight_scale", "k_proj.k_scale.weight", "q_scale"):
        assert cache_scale(beside + name) is None
    assert cache_scale("layers.7.encoder_attn.k_scale") is None


def test_where_scales_cannot_be_calculated() -> None:
    model = CPUModel(GROUPED, WeightFiles(format="safetensors", files=(), dtype="float32"), "auto")
    with pytest.raises(StartupError, match="needs kv_cache_dtype fp8, which is auto"):
        check_calculated(setup_of(model, calculate_kv_scales=True))
    group = RankGroup(tensor=2, pipeline=1, rank=0, rendezvous="127.0.0.1:1", number=1)
    with pytest.raises(StartupError, match="where several workers share a model"):
        check_calculated(
            setup_of(model, calculate_kv_scales=True, kv_cache_dtype="fp8", group=group)
        )
