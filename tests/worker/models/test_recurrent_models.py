"""Tiny random models with recurrent layers, saved by transformers: against transformers, and the
same bits in any company and any chunks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.mechanisms import mechanisms
from penstock.prepare.hub_config import read_config
from penstock_worker.attention.interface import BatchLayout, CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.forward import reference
from penstock_worker.forward.backends import backend_module
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import Ranks
from tests.worker.checkpoints import hub_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import config_class
from tests.worker.models.parity import CLEAR_MARGIN, RELATIVE_TOLERANCE
from tests.worker.models.recurrent_cases import DELTA, ON_DEVICE, RECURRENT_CASES
from tests.worker.models.recurrent_runs import BLOCK, RecurrentRun, greedy
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.random_weights import RandomWeights
from tests.worker.recurrent_states import StatesInMemory, check_own_rows

POSITIONS = SIZES["max_position_embeddings"]
WANTED = 12


def prompts() -> list[list[int]]:
    choose = random.Random(8)
    return [
        [choose.randrange(6, SIZES["vocab_size"]) for _ in range(length)]
        for length in (1, 2, 17, 64, 130)
    ]


def compare(model: DecoderModel | CPUModel, theirs: Any) -> None:
    compared = 0
    for prompt, (answer, ours) in zip(prompts(), greedy(model, prompts(), WANTED), strict=True):
        with torch.inference_mode():
            true = theirs(torch.tensor([prompt + answer])).logits[0, : len(ours)].float()
        count = len(prompt)
        difference = (ours[:count] - true[:count]).abs().amax(-1)
        allowed = RELATIVE_TOLERANCE * true[:count].abs().amax(-1)
        assert bool((difference <= allowed).all()), (difference / allowed).max()
        for step, token in enumerate(answer):
            best = true[count - 1 + step].topk(2)
            if best.values[0] - best.values[1] < CLEAR_MARGIN:
                break
            assert token == int(best.indices[0]), (count, step)
            compared += 1
    assert compared >= len(prompts()) * WANTED // 4


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", RECURRENT_CASES)
def test_recurrent_layers_equal_transformers(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*RECURRENT_CASES[case])
    theirs.save_pretrained(tmp_path)
    compare(hub_model(tmp_path, torch.float32, POSITIONS), theirs)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_text_half_of_qwen35(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(3)
    sees = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "depth": 1,
        "num_heads": 2,
        "out_hidden_size": SIZES["hidden_size"],
    }
    rope = DELTA["rope_parameters"] | {"mrope_section": [2, 1, 1]}
    text = SIZES | DELTA | {"rope_parameters": rope}
    config = transformers.Qwen3_5Config(
        text_config=text, vision_config=sees, image_token_id=5, video_token_id=4
    )
    config._attn_implementation = "eager"
    theirs = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    half = hub_model(tmp_path, torch.float32, POSITIONS, language_model_only=True)
    compare(half, theirs)


@pytest.mark.slow
def test_experts_that_are_one_tensor_are_cut(tmp_path: Path) -> None:
    """The hub's files of Qwen3.5 have them so; transformers writes them one by one."""
    theirs = make_theirs(*RECURRENT_CASES["qwen35-moe"])
    theirs.save_pretrained(tmp_path)
    (one_by_one,) = RecurrentRun(hub_model(tmp_path, torch.float32, POSITIONS), 1).step(
        [(0, prompts()[2])]
    )
    tensors = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    assert any(name.endswith("mlp.experts.gate_up_proj") for name in tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    together = hub_model(tmp_path, torch.float32, POSITIONS)
    assert torch.equal(RecurrentRun(together, 1).step([(0, prompts()[2])])[0], one_by_one)


@pytest.mark.slow
def test_convolutions_may_be_apart(tmp_path: Path) -> None:
    """Files of releases have those of queries, keys and values by themselves."""
    family, settings = RECURRENT_CASES["olmo-hybrid"]
    theirs = make_theirs(family, settings | {"linear_value_head_dim": 20})
    theirs.save_pretrained(tmp_path)
    tensors = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    found = []
    for apart in (False, True):
        for name in [name for name in tensors if apart and name.endswith(".conv1d.weight")]:
            for thing, part in zip("qkv", tensors.pop(name).split((72, 72, 120)), strict=True):
                tensors[name.replace("conv1d", f"{thing}_conv1d")] = part.contiguous()
        save_file(tensors, tmp_path / "model.safetensors")
        model = hub_model(tmp_path, torch.float32, POSITIONS)
        found += RecurrentRun(model, 1).step([(0, prompts()[2])])
    assert torch.equal(*found)
    with torch.inference_mode():
        true = theirs(torch.tensor([prompts()[2]])).logits[0]
    assert (found[0] - true).abs().max() < 1e-3 * true.abs().max()


def read(case: str) -> ModelConfig:
    family, settings = RECURRENT_CASES[case]
    theirs = config_class(family)(**(SIZES | settings), architectures=[f"{family}ForCausalLM"])
    return read_config(Fields(theirs.to_dict(), case))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", RECURRENT_CASES)
def test_recurrent_rows_depend_on_their_sequence_alone(case: str) -> None:
    config = read(case)
    for dtype in (torch.float32, torch.bfloat16):
        model = DecoderModel(config, RandomWeights(dtype), POSITIONS)
        check_own_rows(RecurrentRun(model, 1).step, RecurrentRun(model, 2).step)


@pytest.mark.parametrize("case", ["qwen35", "nemotron-h", "mamba2"])
def test_stages_of_a_pipeline_have_one_workers_bits(case: str) -> None:
    config, tokens = read(case), [*range(7, 39)]
    (whole,) = RecurrentRun(DecoderModel(config, RandomWeights(), POSITIONS), 1).step([(0, tokens)])
    stages = [
        DecoderModel(config, RandomWeights(), POSITIONS, ranks=Ranks(RankPlace(1, 2, rank)))
        for rank in range(2)
    ]
    positions, hidden = torch.arange(len(tokens)), None
    for stage in stages:
        own = stage.shard.own
        attention = ReferenceAttention(CacheShape.of(own, BLOCK, torch.float32), 2)
        layout = BatchLayout([np.arange(2)], np.array([0]), np.array([len(tokens)]))
        states = StatesInMemory(own).step([(0, len(tokens))])
        with torch.inference_mode():
            hidden = stage.through_layers(
                torch.tensor(tokens),
                hidden,
                positions,
                attention.plan(layout),
                lambda: None,
                states,
            )
    assert hidden is not None
    assert torch.equal(stages[1].logits(hidden), whole)


@pytest.mark.parametrize("case", RECURRENT_CASES)
def test_which_backends_have_them(case: str) -> None:
    needed = mechanisms(read(case))
    assert needed <= reference.MECHANISMS
    assert needed <= cpu.MECHANISMS
    assert (needed <= backend_module("triton").MECHANISMS) == (case in ON_DEVICE)
