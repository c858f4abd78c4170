"""Models whose tokens see entries that stand for several tokens: their bits, what they cache, and
what of their files is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from penstock.errors import StartupError, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.attention_spec import CompressedSpec
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import (
    FULL,
    KVGroup,
    block_numbers,
    blocks_needed,
    kv_layout,
    one_group,
)
from penstock.model.sharing import check_shared
from penstock.model.speculation import SpeculativeConfig
from penstock.prepare.hub_config import read_config
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.aux_hidden import aux_hidden_for
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.layers.experts import load_by_token
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.names import TOKEN_EXPERTS
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights
from tests.shared.releases.reading import RELEASES
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import config_class, read
from tests.worker.models.test_family_bits import NO_FILES
from tests.worker.random_weights import RandomWeights

pytestmark = pytest.mark.timeout(120)

CASE, LENGTH, CHUNKS = "deepseek-v4", 150, (1, 2, 30, 3, 70, 40, 4)
BLOCKS = 80
TOKENS = np.random.default_rng(3).integers(0, int(SIZES["vocab_size"]), LENGTH)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def forward(config: ModelConfig, block: int = 16, blocks: int = BLOCKS) -> ReferenceForward:
    model = DecoderModel(config, RandomWeights(), 256)
    shape = CacheShape.of(config, block, torch.float32)
    return ReferenceForward(model, ReferenceAttention(shape, blocks))


def computed(
    of: Forward,
    table: np.ndarray,
    start: int,
    count: int,
    tokens: np.ndarray = TOKENS,
    groups: int = 1,
) -> torch.Tensor:
    """`table`: of the first KV group, in its BLOCKS blocks; the others have as many."""
    first, *more = ([table + BLOCKS * group] for group in range(groups))
    new = tokens[start : start + count]
    batch = Batch(new, first, np.array([start]), np.array([count]), tuple(more))
    return in_torch(of.logits(batch, np.arange(count)))


def with_specs(
    config: ModelConfig, change: Callable[[CompressedSpec], CompressedSpec]
) -> ModelConfig:
    layers = []
    for layer in config.layers:
        spec = layer.attention.compressed
        assert spec is not None
        layers.append(replace(layer, attention=replace(layer.attention, compressed=change(spec))))
    return replace(config, layers=tuple(layers))


def choosing(config: ModelConfig, most: int | None) -> ModelConfig:
    """Tokens read so many entries; None: all."""

    def changed(spec: CompressedSpec) -> CompressedSpec:
        if spec.index is None:
            return spec
        return replace(spec, index=None if most is None else replace(spec.index, most=most))

    return with_specs(config, changed)


@pytest.mark.parametrize("case", [CASE, "deepseek-v4-unlike-blocks"])
def test_bits_are_those_of_any_blocks_and_chunks(case: str) -> None:
    """Blocks with several entries, with one, with one in several of them; chunks that end within
    entries."""
    config = read(case)
    whole = computed(forward(config), np.arange(10), 0, LENGTH)
    for block in (4, 8, 64):
        of, start, parts = forward(config, block), 0, []
        table = np.random.default_rng(block).permutation(80)[: -(-LENGTH // block)]
        for count in CHUNKS:
            parts.append(computed(of, table, start, count))
            start += count
        assert torch.equal(torch.cat(parts), whole), block


def test_a_copy_of_blocks_has_all_entries() -> None:
    """In the middle of entries of either kind."""
    config, first, count = read(CASE), np.arange(10), 77
    here, other = forward(config), forward(config)
    computed(here, first, 0, count)
    moved = first[::-1] + 40
    for source, target in zip(here.kv_blocks(), other.kv_blocks(), strict=True):
        target[moved] = source[first]
    rest = computed(other, moved, count, LENGTH - count)
    assert torch.equal(rest, computed(here, first, count, LENGTH - count))


def test_where_all_entries_are_kept_nothing_is_chosen() -> None:
    """Bit for bit. With one entry less, the last rows alone choose, and leave one out."""
    config, table, entries = read(CASE), np.arange(10), LENGTH // 4
    dense = computed(forward(choosing(config, None)), table, 0, LENGTH)
    kept = computed(forward(choosing(config, entries)), table, 0, LENGTH)
    assert torch.equal(kept, dense)
    less = computed(forward(choosing(config, entries - 1)), table, 0, LENGTH)
    first = entries * 4 - 1
    assert torch.equal(less[:first], dense[:first])
    assert not torch.equal(less[first], dense[first])


def test_what_lies_before_the_window_is_seen_in_entries_alone() -> None:
    """Without them, another first token changes the last row no more."""
    config, table = read(CASE), np.arange(10)
    plain = with_specs(config, lambda spec: replace(spec, rate=0, overlaps=False, index=None))
    last = []
    for each in (config, plain):
        for token in (5, 6):
            tokens = np.concatenate(([token], TOKENS[1:]))
            last.append(computed(forward(each), table, 0, LENGTH, tokens)[-1])
    assert not torch.equal(last[0], last[1])
    assert torch.equal(last[2], last[3])


def test_what_a_block_takes() -> None:
    """In one group, and in several: that of entries, and one for each layer with an index, as what
    it has of a block is the largest part."""
    config, layout = read(CASE), kv_layout(read(CASE), 256)
    entry = 32 + 16
    indexed = 16 * (32 + 2 * 2 * entry)
    kept = 2 * 4 * entry + 32  # Two layers with an index; one without, an entry of two blocks.
    whole = 2 * indexed + 16 * (32 + 2 * 32) + 16 * 32 + kept
    assert layout.groups == (FULL, *[KVGroup(window=32)] * 3)
    assert len({layout.layers[1], layout.layers[3], layout.layers[0]}) == 3
    assert layout.layers[0] == layout.layers[2]
    for own, numbers in ((one_group(4), whole), (layout, indexed)):
        assert block_numbers(config, own, 16) == numbers
        shape = CacheShape.of(config, 16, torch.bfloat16, own)
        assert ReferenceAttention.block_bytes(shape) == 2 * numbers
        [view] = ReferenceAttention(shape, 5).kv_blocks()
        assert view.shape == (5, 2 * numbers)


def test_what_a_long_context_takes_is_entries() -> None:
    """DeepSeek V4 Flash: 8 kB a token in bfloat16, and the last 128 tokens of each layer."""
    values = RELEASES["deepseek-ai/DeepSeek-V4-Flash"]["config"]
    config = read_config(Fields(values, "config.json").without("quantization_config"))
    layout = kv_layout(config, 1 << 20)
    assert layout.groups[0] == FULL
    assert {group.window for group in layout.groups[1:]} == {128}
    entries = 21 * 4 * (512 + 128) + 20 * 512
    assert block_numbers(config, layout, 16) == entries == 8000 // 2 * 16
    held = blocks_needed(layout.groups, 1 << 20, 16)
    assert held == (1 << 16) + 9 * (len(layout.groups) - 1)


def test_what_is_not_served() -> None:
    config = read(CASE)
    setup = CPUModel(config, NO_FILES, "float32", backend="reference").setup()
    said = SpeculativeConfig(method="eagle3", num_speculative_tokens=2)
    with pytest.raises(StartupError, match="reads one residual"):
        aux_hidden_for(config, replace(setup, speculation=said))
    with pytest.raises(StartupError, match="kv_cache_dtype is int8"):
        CacheShape.of(config, 16, torch.int8)
    for ranks in ((2, 1), (1, 2)):
        with pytest.raises(StartupError, match="which one rank must hold"):
            check_shared(config, *ranks)


@pytest.mark.parametrize(
    ("row", "said"), [([0, 1, 8], "from 0 to 8; 0 to 7"), ([2, 1, 2], "the same expert twice")]
)
def test_a_table_of_experts_that_there_are_not(row: list[int], said: str) -> None:
    config = read(CASE)
    spec = config.layer(0).feed_forward.experts
    assert spec is not None
    table = np.tile(np.array([0, 1, 2]), (config.vocab_size, 1))
    table[7] = row
    name = f"layers.0.mlp.{TOKEN_EXPERTS}"
    stored = StoredTensor(name, table.shape, "I64", table.reshape(-1).view(np.uint8))
    weights = Weights({name: stored}, torch.float32)
    with pytest.raises(UnsupportedModel, match=said):
        load_by_token(weights, config.vocab_size, spec, "layers.0.mlp")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compress_ratios": [0, 4, 16]}, "a layer's attention is '16'"),
        ({"layer_types": ["sliding_attention"]}, "of 1 layers is said"),
        ({"o_groups": 4}, "o_groups is 4; it has to divide 6"),
        ({"compress_rate_hca": 0}, "an entry stands for 0 tokens"),
        ({"qk_rope_head_dim": 24}, "24 numbers of a head rotate"),
        ({"hc_mult": 0}, "hc_mult is 0"),
        ({"hc_sinkhorn_iters": 10**9}, "hc_sinkhorn_iters is 1000000000"),
        ({"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'; 'sqrtsoftplus' is served"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2; 1 is served"),
        ({"swiglu_limit": 0.0}, "swiglu_limit is 0.0; a positive number"),
        ({"compress_ratios": [0, 4, 128, 0], "index_topk": 0}, "an index chooses 0 tokens"),
    ],
    ids=str,
)
def test_settings_that_are_refused(change: dict[str, object], said: str) -> None:
    values = config_class("DeepseekV4")(
        **SIZES, num_attention_heads=6, head_dim=32, o_groups=2
    ).to_dict()
    for key in ("layer_types", "compress_rates", "rope_parameters", "partial_rotary_factor"):
        del values[key]
    values |= {"architectures": ["DeepseekV4ForCausalLM"], "index_head_dim": 16}
    with pytest.raises(UnsupportedModel, match=said):
        read_config(Fields(values | change, "config.json"))
