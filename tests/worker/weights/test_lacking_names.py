"""A tensor that a safetensors checkpoint lacks is called as the checkpoint calls it: as it did
before the tensor was taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.families.finding import served_family
from penstock.families.tensor_names import TensorNames
from penstock.formats.weight_files import find_safetensors
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.lacking_names import Tensors, decoder_name
from penstock_worker.weights.stored import StoredTensor
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.weights.test_family_names import stored

DECODERS = (
    *("qwen3-7-7-tied-biases", "phi3", "cohere", "glm4", "olmo2", "ernie45", "gemma2"),
    *("mixtral", "granite-moe", "gpt-oss", "glm45", "deepseek-v3", "minimax-m2", "dots1"),
)


def without(name: str, tensors: Tensors) -> Tensors:
    return {ours: each for ours, each in tensors.items() if ours != name}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", DECODERS)
def test_a_decoders(case: str, tmp_path: Path) -> None:
    make_theirs(*CASES[case]).save_pretrained(tmp_path)
    names, config = served_family(read(case).architecture).hub_names, read(case)
    files = tuple(map(str, find_safetensors(tmp_path)))
    tensors = by_our_names(safetensors_tensors(files), names, config)
    for name, each in tensors.items():
        assert decoder_name(name, without(name, tensors), names) == each.name


def named(**theirs: str) -> dict[str, StoredTensor]:
    return {ours.replace("__", "."): stored(name, 4) for ours, name in theirs.items()}


@pytest.mark.parametrize(
    ("name", "tensors", "expected"),
    [
        (
            "norm.weight",
            named(embed_tokens__weight="model.embed_tokens.weight"),
            "model.norm.weight",
        ),
        ("lm_head.weight", named(layers__0__x="model.layers.0.x"), "lm_head.weight"),
        (
            "lm_head.weight",
            named(layers__0__x="language_model.model.layers.0.x"),
            "language_model.lm_head.weight",
        ),
        ("lm_head.weight", named(layers__0__x="model.language_model.layers.0.x"), "lm_head.weight"),
        (
            "layers.1.self_attn.q_proj.weight",
            named(layers__0__x="transformer.h.0.x"),
            "transformer.h.1.self_attn.q_proj.weight",
        ),
        ("norm.weight", {}, "norm.weight"),
    ],
)
def test_what_no_other_layer_has_stands_behind_what_the_files_have_in_front(
    name: str, tensors: Tensors, expected: str
) -> None:
    assert decoder_name(name, tensors, TensorNames()) == expected
