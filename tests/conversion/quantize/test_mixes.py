"""Which tensors of a model get which type, beside files that others have made."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.errors import InvalidRequest
from penstock.formats.gguf_types import BLOCKS
from penstock.prepare.from_gguf import MIXTURES
from penstock_conversion.quantize.mixes import MIXES, MixFacts, find_mix, is_quantised, tensor_type

MODULES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def types(
    mix: str, layers: int, hidden: int, inner: int, *, tied: bool, shares: int = 4, **facts: bool
) -> dict[str, str]:
    """The types of a dense model's matrices."""
    known = MixFacts(layers, shares, 0, tied, facts.get("weighted", False))
    shapes = {"token_embd.weight": (1000, hidden)}
    if not tied:
        shapes["output.weight"] = (1000, hidden)
    for layer in range(layers):
        for module in MODULES:
            columns = inner if module == "ffn_down" else hidden
            shapes[f"blk.{layer}.{module}.weight"] = (64, columns)
    return {name: tensor_type(name, shape, find_mix(mix), known) for name, shape in shapes.items()}


def test_q4_k_m_of_qwen_coder_is_as_released() -> None:
    """Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF, q4_k_m: of its 170 matrices so many have each type,
    and its rows of 896 are no multiple of 256."""
    found = types("Q4_K_M", 24, 896, 4864, tied=False, shares=7)
    assert Counter(found.values()) == {"Q5_0": 133, "Q8_0": 13, "Q6_K": 12, "Q4_K": 12}
    assert found["output.weight"] == "Q8_0"
    assert found["token_embd.weight"] == "Q5_0"


def test_q4_k_m_of_32_layers_is_as_llama_7bs() -> None:
    """Llama 2 7B as Q4_K_M: 193 matrices of Q4_K, 33 of Q6_K."""
    found = types("Q4_K_M", 32, 4096, 11008, tied=False, shares=1)
    assert Counter(found.values()) == {"Q4_K": 193, "Q6_K": 33}
    assert [found[f"blk.{layer}.ffn_down.weight"] for layer in (3, 4, 6, 27, 28)] == [
        *("Q6_K", "Q4_K", "Q6_K", "Q6_K", "Q6_K")
    ]


def test_q3_k_m_of_32_layers_is_as_llama_7bs() -> None:
    """Llama 2 7B as Q3_K_M: 129 matrices of Q3_K, 92 of Q4_K, 4 of Q5_K, 1 of Q6_K."""
    found = types("Q3_K_M", 32, 4096, 11008, tied=False, shares=1)
    assert Counter(found.values()) == {"Q3_K": 129, "Q4_K": 92, "Q5_K": 4, "Q6_K": 1}


def test_q2_k_gives_values_more_bits_where_heads_share_them() -> None:
    many, one = (types("Q2_K", 32, 4096, 11008, tied=True, shares=each) for each in (8, 1))
    assert many["blk.5.attn_v.weight"] == "Q4_K"
    assert one["blk.5.attn_v.weight"] == "Q3_K"


def test_a_tied_embedding_has_the_heads_type() -> None:
    assert types("Q4_K_M", 8, 512, 1024, tied=True)["token_embd.weight"] == "Q6_K"
    assert types("Q4_K_M", 8, 512, 1024, tied=False)["token_embd.weight"] == "Q4_K"
    assert types("Q4_0", 8, 512, 1024, tied=True)["token_embd.weight"] == "Q6_K"
    assert types("Q8_0", 8, 512, 1024, tied=True)["token_embd.weight"] == "Q8_0"


def test_first_downs_are_guarded_where_columns_are_weighted() -> None:
    plain, weighted = (types("Q4_0", 16, 512, 1024, tied=True, weighted=each) for each in (0, 1))
    assert plain["blk.0.ffn_down.weight"] == "Q4_0"
    assert weighted["blk.1.ffn_down.weight"] == "Q4_1"
    assert weighted["blk.2.ffn_down.weight"] == "Q4_0"


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("columns", [96, 40, 512])
def test_blocks_fit_every_row(mix: str, columns: int) -> None:
    for kind in types(mix, 8, columns, columns, tied=False).values():
        assert columns % BLOCKS[kind].elements == 0


def test_file_types_are_those_that_are_read() -> None:
    for name, mix in MIXES.items():
        if mix.base not in ("F32", "F16", "BF16"):
            assert MIXTURES[mix.file_type] == name


def test_what_chooses_and_what_is_small_stays_float() -> None:
    assert is_quantised("blk.0.ffn_up.weight", (8, 8))
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ssm_conv1d.weight"):
        assert not is_quantised(name, (8, 8))
    assert not is_quantised("blk.0.attn_q.bias", (8,))


def test_an_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"--to is 'Q9'; allowed are F32, F16.*Q2_K"):
        find_mix("Q9")
    assert find_mix("q4_k_m") is MIXES["Q4_K_M"]
