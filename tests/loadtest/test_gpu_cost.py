"""Bytes, operations and limits of the GPU measurements, against values worked out by hand."""

from __future__ import annotations

import pytest

from loadtest.gpu.cost import (
    Limits,
    ModelCost,
    attention_flops,
    attention_pairs,
    decode_attention_bytes,
    product_bytes,
    product_flops,
)
from loadtest.gpu.extent import DRY, GPU
from loadtest.gpu.parts import mixed
from loadtest.gpu.parts.steps import room, setup
from loadtest.gpu.shapes import LLAMA_8B, MODELS, QWEN3_06B
from loadtest.gpu.workload import output_tokens, requests
from penstock_worker.forward.buckets import mixed_rows


def test_the_8b_shape_has_the_bytes_that_its_matrices_have() -> None:
    cost = ModelCost(LLAMA_8B)
    # 4096 x (4096 + 2 x 1024) + 4096 x 4096 + 3 x 4096 x 14336
    assert cost.layer_parameters == 25_165_824 + 16_777_216 + 176_160_768
    assert cost.head_parameters == 525_336_576
    assert cost.weight_bytes == 15_009_316_864
    assert cost.kv_bytes == 131_072  # 32 layers x 2 x 8 heads x 128 x 2 bytes
    # The published 8.03e9 parameters: these, the embedding once more, and norms.
    assert cost.weight_bytes // 2 + cost.head_parameters == pytest.approx(8.03e9, rel=1e-3)


def test_the_small_shape_counts_its_tied_head_once() -> None:
    cost = ModelCost(QWEN3_06B)
    # 1024 x (2048 + 2 x 1024) + 2048 x 1024 + 3 x 1024 x 3072
    assert cost.layer_parameters == 4_194_304 + 2_097_152 + 9_437_184
    assert cost.weight_bytes == 2 * (28 * 15_728_640 + 155_582_464)
    assert cost.kv_bytes == 114_688


def test_a_decode_step_reads_weights_and_cache() -> None:
    cost = ModelCost(LLAMA_8B)
    # 64 x 1025 x 131072 = 8.6e9 beside the weights' 15.0e9.
    assert cost.decode_bytes(64, 1024) == 15_009_316_864 + 8_598_323_200


def test_a_chunk_beside_decodes_reads_its_prompts_cache_too() -> None:
    cost = ModelCost(LLAMA_8B)
    assert cost.mixed_bytes(64, 1024, 1920, 192) == cost.decode_bytes(64, 1024) + 2112 * 131_072


def test_a_prompt_costs_its_products_and_its_triangle_of_scores() -> None:
    cost = ModelCost(LLAMA_8B)
    products = 2 * (1024 * 6_979_321_856 + 525_336_576)
    scores = 32 * 4 * 32 * 128 * (1024 * 1025 // 2)
    assert cost.prefill_flops([(0, 1024)]) == products + scores
    assert cost.prefill_flops([(0, 1024)] * 3) == 3 * (products + scores)


def test_chunks_of_a_prompt_see_as_many_keys_as_the_whole() -> None:
    assert attention_pairs(0, 3) == 1 + 2 + 3
    assert attention_pairs(5, 2) == 6 + 7
    assert attention_pairs(0, 100) == attention_pairs(0, 60) + attention_pairs(60, 40)
    assert attention_flops(32, 128, 0, 3) == 4 * 32 * 128 * 6


def test_kernels_move_what_they_must() -> None:
    # Keys and values: 64 x 8192 x 8 x 128 x 2 x 2 bytes; queries and results beside them.
    assert decode_attention_bytes(64, 8192, 32, 8, 128) == 2_147_483_648 + 1_048_576
    assert decode_attention_bytes(64, 8192, 32, 8, 128, 1) == 1_073_741_824 + 1_048_576
    assert product_bytes(1, 4096, 6144) == 2 * (4096 * 6144 + 4096 + 6144)
    assert product_bytes(2, 128, 256, 0.53125) == 17_408 + 2 * 2 * (128 + 256)
    assert product_flops(4096, 4096, 6144) == 2 * 4096 * 4096 * 6144


def test_the_slower_of_the_two_limits_counts() -> None:
    limit = Limits(memory=4e12, matrix=8e14)
    assert limit.seconds(4e9, 8e10) == pytest.approx(1e-3)
    assert limit.seconds(4e9, 8e12) == pytest.approx(1e-2)


def test_requests_are_seeded_and_the_first_of_them_the_same() -> None:
    many = requests(256, 100, 1024, 151_936)
    assert many[:64] == requests(64, 100, 1024, 151_936)
    sizes = [len(one.prompt) for one in many] + [one.output for one in many]
    assert min(sizes) >= 100
    assert max(sizes) <= 1024
    # 256 times the mean of 562.
    assert output_tokens(many) == pytest.approx(256 * 562, rel=0.1)
    assert all(0 < token < 151_936 for one in many for token in one.prompt)


@pytest.mark.parametrize("extent", [GPU, DRY], ids=["gpu", "dry"])
def test_what_is_measured_fits_the_models(extent: object) -> None:
    for name in extent.models:
        longest = MODELS[name].max_position
        assert max(2 * extent.longest, room(extent)) <= longest
        for mode in extent.modes:
            asked = setup(extent, "folder", mode, "cuda")
            assert asked.max_model_len <= longest
            tokens = asked.num_kv_blocks * asked.block_size
            assert tokens >= max(mode.batches) * room(extent)
            assert tokens * ModelCost(MODELS[name]).kv_bytes < 100e9
        for mode in extent.mixed_modes:
            asked = mixed.setup(extent, "folder", mode, "cuda")
            assert asked.max_model_len <= longest
            tokens = asked.num_kv_blocks * asked.block_size
            assert tokens >= (asked.max_num_seqs - 1) * mixed.room(extent) + mixed.prompt(extent)
            rows = mixed_rows(asked, MODELS[name])
            for decodes, chunk in extent.mixed:
                assert decodes < asked.max_num_seqs
                assert decodes + chunk <= rows[-1]
