"""What a server says of a token and what a trainer computes for it are the same bits; the gradients
are transformers'."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from penstock.model.mechanisms import mechanisms
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import TokenSampling
from penstock_training import TrainerForward
from penstock_training.trainer_forward import TRAINABLE
from penstock_worker.forward.interface import Unable
from testing.in_process import Numerics, System, Way
from testing.tiny_models import write_gguf
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.test_parity_families import make_theirs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ANSWER = 12
LENGTHS = (2, 17, 70, 130)
SHORT = ("llama-5-1-wide-heads-biases", "gemma2-tight-caps", "olmo2", "phi3-window")
"""Biases and a tied head; soft caps and windows; norms behind alone; tensors that are fused."""
TRAINED = [case for case in CASES if mechanisms(read(case)) <= TRAINABLE]


def cases() -> list[Any]:
    return [pytest.param(case, marks=() if case in SHORT else pytest.mark.long) for case in TRAINED]


def prompts() -> list[list[int]]:
    choose = random.Random(3)
    return [[choose.randrange(SIZES["vocab_size"]) for _ in range(n)] for n in LENGTHS]


def rolled_out(
    folder: Path, dtype: str = "float32", kv: str = "auto"
) -> list[tuple[list[int], list[float]]]:
    """Prompt with answer, sampled in company and in chunks, and what the server said of each token
    but the first."""
    way = Way(block_size=32, budget=23, num_blocks=128)
    system = System(prepare(str(folder)), Numerics("reference", dtype, kv), way)
    for number, ids in enumerate(prompts()):
        sampling = TokenSampling(seed=number, logprobs=0, prompt_logprobs=0)
        system.submit(number, ids, ANSWER, sampling)
    system.run()
    found = []
    for number, ids in enumerate(prompts()):
        heard = system.heard[number, 0]
        told = [each.logprob for each in heard.prompt_logprobs + heard.logprobs]
        found.append((ids + heard.tokens, told))
    return found


def save(theirs: Any, folder: Path) -> None:
    """With a tokenizer, which every checkpoint of the hub has."""
    theirs.get_input_embeddings().padding_idx = None  # whose gradient it would leave out
    theirs.generation_config.eos_token_id = theirs.generation_config.bos_token_id = None
    theirs.config.eos_token_id = theirs.config.bos_token_id = None
    theirs.save_pretrained(folder)
    words = {f"word{id}": id for id in range(SIZES["vocab_size"])}
    Tokenizer(WordLevel(words, unk_token="word0")).save(str(folder / "tokenizer.json"))


def likelihoods_of(theirs: Any, ids: list[int]) -> Tensor:
    """By transformers, of each token but the first."""
    rows = torch.log_softmax(theirs(torch.tensor([ids])).logits[0, :-1].float(), -1)
    return rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def gradients(loss: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    loss.backward()
    found = {}
    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        found[name], parameter.grad = parameter.grad, None
    return found


@pytest.mark.parametrize("case", cases())
def test_what_is_sampled_is_what_is_trained(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*CASES[case])
    save(theirs, tmp_path)
    forward = TrainerForward(str(tmp_path), max_model_len=256)
    parameters = dict(theirs.named_parameters())
    for ids, told in rolled_out(tmp_path):
        found = forward.logprobs(ids, parameters)
        assert found.tolist() == told
        assert forward.logprobs(ids).tolist() == told
        true = likelihoods_of(theirs, ids)
        torch.testing.assert_close(found, true, rtol=1e-3, atol=1e-3)
        weights = torch.linspace(-1, 1, len(told))
        ours = gradients((found * weights).sum(), parameters)
        wanted = gradients((true * weights).sum(), parameters)
        for name, grad in wanted.items():
            allowed = 2e-3 * float(grad.abs().max()) + 1e-5
            assert float((ours[name] - grad).abs().max()) <= allowed, name


def test_after_a_step_of_training_too(tmp_path: Path) -> None:
    theirs = make_theirs(*CASES["llama-9-3"])
    save(theirs, tmp_path / "before")
    forward = TrainerForward(str(tmp_path / "before"), max_model_len=256)
    parameters = dict(theirs.named_parameters())
    optimiser = torch.optim.SGD(parameters.values(), lr=0.01)
    before = rolled_out(tmp_path / "before")
    loss = -torch.cat([forward.logprobs(ids, parameters)[-ANSWER:] for ids, _ in before]).mean()
    loss.backward()
    optimiser.step()
    save(theirs, tmp_path / "after")
    after = rolled_out(tmp_path / "after")
    assert [told for _, told in after] != [told for _, told in before]
    for ids, told in after:
        assert forward.logprobs(ids, parameters).tolist() == told


@pytest.mark.parametrize("kv", ["int8", "bfloat16"])
def test_keys_and_values_of_another_type(kv: str, tmp_path: Path) -> None:
    theirs = make_theirs(*CASES["llama-9-3"])
    save(theirs, tmp_path)
    forward = TrainerForward(str(tmp_path), kv_cache_dtype=kv, max_model_len=256)
    parameters = dict(theirs.named_parameters())
    for ids, told in rolled_out(tmp_path, kv=kv):
        found = forward.logprobs(ids, parameters)
        assert found.tolist() == told
    for name, grad in gradients(found.sum(), parameters).items():
        assert bool(grad.isfinite().all()), name


def test_in_bfloat16(tmp_path: Path) -> None:
    theirs = make_theirs(*CASES["llama-9-3"]).to(torch.bfloat16)
    save(theirs, tmp_path)
    forward = TrainerForward(str(tmp_path), max_model_len=256)
    parameters = dict(theirs.named_parameters())
    for ids, told in rolled_out(tmp_path, "auto"):
        found = forward.logprobs(ids, parameters)
        assert found.tolist() == told
    for name, grad in gradients(found.sum(), parameters).items():
        assert bool(grad.isfinite().all()), name
        assert bool(grad.any()), name


def test_a_checkpoints_own_parameters_by_its_own_names(tmp_path: Path) -> None:
    """Of a GGUF file, whose rows of queries and keys lie in another order than ours."""
    file = str(write_gguf(tmp_path / "tiny.gguf"))
    folder, forward = prepare(file), TrainerForward(file)
    system = System(folder, Numerics("reference", "auto"), Way(16, 16, 64, max_model_len=128))
    ids = random.Random(5).choices(range(load_manifest(folder).decoder.vocab_size), k=40)
    system.submit(1, ids, 1, TokenSampling(seed=1, temperature=0.0, prompt_logprobs=0))
    system.run()
    told = [each.logprob for each in system.heard[1, 0].prompt_logprobs]
    parameters = forward.parameters()
    assert "blk.0.attn_q.weight" in parameters
    found = forward.logprobs(ids, parameters)
    assert found.tolist() == told
    for name, grad in gradients(found.sum(), parameters).items():
        assert bool(grad.any()), name


def test_what_can_not_be_computed_is_said(tmp_path: Path) -> None:
    theirs = make_theirs(*CASES["llama-9-3"])
    save(theirs, tmp_path)
    forward = TrainerForward(str(tmp_path), max_model_len=64)
    norm = "model.norm.weight"
    for ids, given, said in (
        ([1], {}, "1 tokens; allowed are 2 to 64"),
        ([1] * 65, {}, "65 tokens; allowed are 2 to 64"),
        ([1, 199], {}, "199; allowed are 0 to 198"),
        ([1, -1], {}, "-1; allowed are 0 to 198"),
        ([1, 2], {"model.nrom.weight": torch.ones(72)}, "no tensors called model.nrom.weight"),
        ([1, 2], {norm: torch.ones(71)}, r"shape \(71,\); the model needs \(72,\)"),
        ([1, 2], {norm: torch.ones(72, device="meta")}, "on meta; allowed is cpu"),
        ([1, 2], {norm: torch.full((72,), torch.nan)}, "not finite"),
    ):
        with pytest.raises(ValueError, match=said):
            forward.logprobs(ids, given)


def test_a_model_without_gradients_is_refused_by_name(tmp_path: Path) -> None:
    save(make_theirs(*CASES["qwen2-moe"]), tmp_path)
    with pytest.raises(Unable, match="a mixture of experts"):
        TrainerForward(str(tmp_path))
