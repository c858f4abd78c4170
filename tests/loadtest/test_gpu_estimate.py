"""The estimates, against sums worked out by hand, and the page that has them."""

from __future__ import annotations

import pytest

from loadtest.gpu.cost import attention_flops
from loadtest.gpu.estimate.machine import H100, TAKEN
from loadtest.gpu.estimate.model import QWEN3_8B, QWEN3_30B_A3B
from loadtest.gpu.estimate.page import FP8_30B, PAGE, page
from loadtest.gpu.estimate.steps import (
    decode,
    gaps,
    mixed,
    prefill,
    prefill_shares,
    smaller_splits,
)

LAYER = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12_288
HEAD = 151_936 * 4096


def test_a_decodes_limit_is_what_it_reads() -> None:
    found = decode(QWEN3_8B, [1024] * 64)
    keys = 64 * 1024 * 36 * 2 * 8 * 128 * 2
    assert found.limit == pytest.approx((2 * (36 * LAYER + HEAD) + keys) / H100.memory)
    assert found.limit < found.now
    late = QWEN3_8B.kernels * TAKEN.gap
    assert gaps(QWEN3_8B) == pytest.approx(late - 36 * 6 * (TAKEN.gap - TAKEN.early_gap))


def test_a_short_prompt_among_decodes_has_its_rows_limit() -> None:
    """Of 58 rows, which are padded to 64."""
    found = mixed(QWEN3_8B, [1024] * 8, 50)
    keys = 8 * 1024 * 36 * 2 * 8 * 128 * 2
    operations = 36 * attention_flops(32, 128, 0, 50)
    least = (2 * (36 * LAYER + HEAD) + keys) / H100.memory + operations / H100.matrix
    assert found.limit == pytest.approx(least)
    assert found.limit < found.now < 1.5 * found.limit


def test_a_prefills_limit_is_what_it_multiplies() -> None:
    operations = 2 * 8192 * 36 * LAYER + 36 * attention_flops(32, 128, 0, 8192)
    least = operations / H100.matrix + 2 * HEAD / H100.memory
    assert prefill(QWEN3_8B, 8192).limit == pytest.approx(least)


def test_a_prompts_attention_is_a_range() -> None:
    """Its seconds are its operations in tiles of 128 keys, of whose last one half is masked."""
    operations = 36 * 4 * 32 * 128 * 8192 * (8192 + 128) / 2
    low, high = prefill_shares(QWEN3_8B, 8192)
    step = prefill(QWEN3_8B, 8192)
    assert 0.5 < low < step.share < high < 1
    saved = operations / H100.matrix * (1 / TAKEN.two_tiles - 1 / TAKEN.two_tiles_most)
    assert step.limit / high == pytest.approx(step.now - saved)


def test_few_programs_read_slowly() -> None:
    """1,024 keys of one sequence are two splits for each of 8 heads, for 132 processors; those of
    64 sequences are read at full rate. All else is equal but the rows' products."""
    one, two = (decode(QWEN3_8B, [context]).now for context in (512, 1024))
    least = 512 * 36 * 2 * 8 * 128 * 2 / (TAKEN.stream * H100.memory)
    assert TAKEN.reading(H100, 1e9, 16) == pytest.approx(
        TAKEN.reading(H100, 1e9) * 132 / 16 / TAKEN.one_processor
    )
    assert TAKEN.reading(H100, 1e9, 132) == TAKEN.reading(H100, 1e9)
    # Twice as many keys, read by twice as many programs, take as long.
    assert two == pytest.approx(one)
    four = decode(QWEN3_8B, [1024] * 64).now
    eight = decode(QWEN3_8B, [1536] * 64).now
    assert eight - four == pytest.approx(64 * least)


def test_smaller_splits_help_one_sequence_and_cost_many() -> None:
    """Of 128 keys: 64 programs in place of 16; 8 splits of each of 256 sequences in place of 2."""
    saved, taken = smaller_splits(QWEN3_8B, [1024], 128)
    once = 1024 * 4096 / (TAKEN.stream * H100.memory * TAKEN.one_processor) * 132
    assert saved == pytest.approx(36 * once * (1 / 16 - 1 / 64))
    assert taken < saved / 10
    saved, taken = smaller_splits(QWEN3_8B, [1024] * 256, 128)
    written = 36 * 256 * 6 * 8 * 4 * 130 * 4
    assert (saved, taken) == (0, pytest.approx(2 * written / (TAKEN.stream * H100.memory)))


def test_experts_are_met_at_random() -> None:
    experts = QWEN3_30B_A3B.experts
    assert experts is not None
    assert experts.met(1) == pytest.approx(8)
    assert experts.met(2) == pytest.approx(8 + 8 * 120 / 128)
    # The release has 30.5 billion parameters, of which 3.3 are active; norms are left out here,
    # and the embedding, which is one more head.
    dense = sum(inputs * outputs for inputs, outputs in QWEN3_30B_A3B.dense)
    heads = 2 * QWEN3_30B_A3B.vocab * QWEN3_30B_A3B.hidden
    every = 48 * (dense + QWEN3_30B_A3B.expert_weights(128)) + heads
    assert every == pytest.approx(30.53e9, rel=1e-3)
    active = 48 * (dense + QWEN3_30B_A3B.expert_weights(8)) + heads
    assert active == pytest.approx(3.35e9, rel=1e-2)


def test_experts_in_fp8_are_read_as_they_are() -> None:
    """64 sequences meet nearly all experts."""
    contexts = [1024] * 64
    found = decode(FP8_30B, contexts)
    plain = decode(QWEN3_30B_A3B, contexts)
    experts = QWEN3_30B_A3B.experts
    assert experts is not None
    numbers = 48 * QWEN3_30B_A3B.expert_weights(experts.met(64))
    dense = 48 * sum(inputs * outputs for inputs, outputs in QWEN3_30B_A3B.dense)
    saved = (2 - 1 - 4 / 128) / H100.memory
    assert plain.limit - found.limit == pytest.approx(saved * (numbers + dense))
    own = saved * numbers / TAKEN.stream
    assert found.now < plain.now - 0.9 * own


def test_the_page_has_the_present_estimates() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m loadtest.gpu.estimate`"
