"""Which part of a block each layer has whose tokens see entries."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.attention_spec import AttentionSpec, CompressedSpec, IndexSpec
from penstock.model.compressed_kv import block_parts, groups_of, needed_tokens
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import FULL, MAX_GROUPS, block_numbers, kv_layout
from penstock.model.layer_spec import LayerSpec
from testing.model_configs import llama_config
from tests.met import met

HEAD = 64
SIZES = {
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_heads": 1,
    "num_kv_heads": 1,
    "max_position": 1 << 20,
}
OUTPUT = {"query_rank": 8, "groups": 1, "group_rank": 8}
WINDOWED = CompressedSpec(**OUTPUT)
INDEXED = CompressedSpec(rate=4, overlaps=True, index=IndexSpec(heads=2, size=16, most=8), **OUTPUT)
ALL = CompressedSpec(rate=128, **OUTPUT)
KINDS = st.sampled_from([WINDOWED, INDEXED, ALL, msgspec.structs.replace(ALL, rate=24)])


def config_of(specs: list[CompressedSpec], window: int | None = 128) -> ModelConfig:
    layers = [LayerSpec(attention=AttentionSpec(window=window, compressed=each)) for each in specs]
    found = llama_config(num_layers=len(specs), head_dim=HEAD, **SIZES)
    return msgspec.structs.replace(found, layers=tuple(layers))


@given(st.lists(KINDS, min_size=1, max_size=90), st.sampled_from([4, 16, 48, 256]))
def test_no_two_layers_have_the_same_numbers_of_a_block(
    specs: list[CompressedSpec], size: int
) -> None:
    groups = [1 + each for each in groups_of(specs, HEAD, MAX_GROUPS - 1)]
    assert set(groups) == set(range(1, 1 + max(groups)))
    assert max(groups) < MAX_GROUPS
    parts = block_parts(specs, groups, HEAD, size)
    taken: dict[int, list[range]] = defaultdict(list)
    met("several groups, with entries", max(groups) > 1 and any(spec.rate for spec in specs))
    for spec, group, tokens, entries in zip(
        specs, groups, parts.tokens, parts.entries, strict=True
    ):
        taken[group].append(tokens)
        taken[0].append(entries)
        assert len(tokens) >= size * HEAD
        last = sum((at + 1) % spec.rate == 0 for at in range(size)) if spec.rate else 0
        assert len(entries) >= last * HEAD
    for own in taken.values():
        numbers = [number for part in own for number in part]
        assert len(numbers) == len(set(numbers))
        assert max(numbers, default=0) < parts.size
    assert kv_layout(config_of(specs), 4096).layers == (
        tuple(groups) if any(spec.rate for spec in specs) else (0,) * len(specs)
    )


@pytest.mark.parametrize(
    ("spec", "window", "needed"),
    [(WINDOWED, 5, 5), (INDEXED, 5, 8), (ALL, 5, 128), (ALL, 300, 300), (ALL, None, None)],
)
def test_a_token_needs_its_window_and_those_of_its_entry(
    spec: CompressedSpec, window: int | None, needed: int | None
) -> None:
    """Whichever of an entry's tokens it is: all of the entry's come after `needed` before it."""
    rule = AttentionSpec(window=window, compressed=spec)
    assert needed_tokens(rule) == needed
    for position in range(300 if needed else 0):
        last = position if not spec.rate else (position // spec.rate + 1) * spec.rate - 1
        assert last - spec.reach + 1 > position - needed


def test_what_no_sequence_outgrows_is_kept() -> None:
    assert set(kv_layout(config_of([INDEXED, ALL], None), 4096).groups) == {FULL}
    assert set(kv_layout(config_of([INDEXED, ALL]), 128).groups) == {FULL}
    layout = kv_layout(config_of([INDEXED, ALL]), 129)
    assert [group.window for group in layout.groups] == [None, 128, 128]


def test_a_model_without_entries_has_groups_as_any_other() -> None:
    config = config_of([WINDOWED] * 3)
    layout = kv_layout(config, 4096)
    assert [group.window for group in layout.groups] == [128]
    assert block_numbers(config, layout, 16) == 3 * 16 * HEAD
