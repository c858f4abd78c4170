"""Arguments that don't fit are refused in words, before any memory is read."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock_kernels.cpu import library
from penstock_kernels.cpu.decoder import Decoder, DecoderShape
from penstock_kernels.cpu.matrix import (
    LEVELS_BLOCK,
    MatrixKind,
    pack,
    pack_blocks,
    pack_levels,
    product,
)
from penstock_kernels.cpu.program import Buffer, PhaseKind, Program
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder
from tests.kernels.cpu.sources import random_source

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("loaded")]


def test_unknown_format() -> None:
    with pytest.raises(ValueError, match="IQ3_S can't be packed; F32, F16"):
        pack("IQ3_S", np.zeros(18, np.uint8), (1, 32))


@pytest.mark.parametrize("shape", [(0, 32), (4, 0), (-1, 32)])
def test_empty_shape(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least one row and one column"):
        pack("F32", np.zeros(0, np.uint8), shape)


@pytest.mark.parametrize("size", [0, 4 * 34 - 1, 4 * 34 + 34])
def test_data_of_another_size(size: int) -> None:
    with pytest.raises(ValueError, match=rf"{size} bytes are no Q8_0 matrix of shape \(4, 32\)"):
        pack("Q8_0", np.zeros(size, np.uint8), (4, 32))


@pytest.mark.parametrize(("format", "unit"), [("Q4_0", 32), ("Q6_K", 256)])
def test_width_that_blocks_do_not_divide(format: str, unit: int) -> None:
    with pytest.raises(ValueError, match=f"{format} hold a multiple of {unit} values, not 48"):
        pack(format, np.zeros(100, np.uint8), (1, 48))


@pytest.mark.parametrize(
    ("format", "kind"),
    [
        ("Q4_0", MatrixKind.S8H),
        ("Q4_K", MatrixKind.U4H),
        ("F32", MatrixKind.U4H),
        ("BF16", MatrixKind.S8W16),
    ],
)
def test_kind_that_does_not_fit(format: str, kind: MatrixKind) -> None:
    source = random_source(format, 2, 256)
    with pytest.raises(ValueError, match=f"can't be packed as {kind.name}"):
        source.packed(kind=kind)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 3], [0, 1, -1], [0, 1, 1], [[0, 1, 2]]], ids=str)
def test_order_that_is_no_permutation(order: list[int]) -> None:
    with pytest.raises(ValueError, match="order must hold each of 0 to 2 once"):
        random_source("F32", 3, 4).packed(order=np.array(order))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 2)], r"the chunks have 2 rows; 4 are needed"),
        ([(3, 2), (2, 2)], r"the chunks have 5 rows or more; 4 are needed"),
        ([(4, 3)], r"\(4, 3\); \(rows, 2\) is needed"),
        ([(8,)], r"\(8,\); \(rows, 2\) is needed"),
    ],
)
def test_chunks_of_other_shapes(shapes: list[tuple[int, ...]], message: str) -> None:
    chunks = [np.zeros(shape, LEVELS_BLOCK) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        pack_levels(chunks, (4, 64), kind=MatrixKind.U4W)


def test_levels_of_a_kind_without_any() -> None:
    with pytest.raises(ValueError, match="levels can't be packed as BF16"):
        pack_levels([np.zeros((4, 2), LEVELS_BLOCK)], (4, 64), kind=MatrixKind.BF16)


def test_blocks_of_another_size_or_with_a_factor_that_they_lack() -> None:
    with pytest.raises(ValueError, match=r"a chunk is uint8 \(4, 36\); \(rows, 72\) is needed"):
        pack_blocks("NVFP4", [np.zeros((4, 36), np.uint8)], (4, 70))
    with pytest.raises(ValueError, match="matrices of MXFP4 have no factor"):
        pack_blocks("MXFP4", [np.zeros((4, 17), np.uint8)], (4, 32), factor=0.5)


def test_bias_of_another_size() -> None:
    with pytest.raises(ValueError, match=r"bias has shape \(1,\); \(3,\) is needed"):
        random_source("F32", 3, 4).packed(bias=np.zeros(1, np.float32))


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 5), (1, 2, 4)], ids=str)
def test_input_of_another_shape(shape: tuple[int, ...]) -> None:
    packed = random_source("F32", 3, 4).packed()
    with pytest.raises(ValueError, match=r"\(rows, 4\) is needed"):
        product(np.zeros(shape, np.float32), packed)


def test_no_threads() -> None:
    source = random_source("F32", 3, 4)
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        source.packed(threads=0)
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        product(np.zeros((1, 4), np.float32), source.packed(), threads=0)


def test_unknown_instruction_set() -> None:
    before = library.instruction_set()
    with pytest.raises(ValueError, match="no 'sse9'"):
        library.use("sse9")
    assert library.instruction_set() == before


FINE = {"heads": 4, "kv_heads": 2, "head_dim": 32, "block_size": 16}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head_dim": 24}, "head_dim is 24, not a multiple of 16"),
        ({"head_dim": 2048}, "head_dim is 2048; at most 1024 is possible"),
        ({"block_size": 8}, "kv_block_size is 8, not a multiple of 16"),
        ({"heads": 258}, "129 query heads share a KV head; at most 128"),
        ({"heads": 3}, "3 query heads can't share 2 KV heads evenly"),
    ],
)
def test_shapes_with_an_obstacle(change: dict[str, int], reason: str) -> None:
    assert DecoderShape(**FINE).obstacle() is None
    assert DecoderShape(**(FINE | change)).obstacle() == reason


@pytest.mark.parametrize(
    ("cache", "size"),
    [("float32", 2 * 2 * 32 * 4), ("bfloat16", 2 * 2 * 32 * 2), ("int8", 2 * 2 * (32 + 4))],
)
def test_memory_of_a_block(cache: str, size: int) -> None:
    """Keys and values of two heads, 16 tokens; int8's scales included."""
    assert sum(DecoderShape(**FINE).halves(cache)) == size * 16


def changed(program: Program, of: PhaseKind, **fields: object) -> Program:
    """With other fields in the first phase of that kind."""
    phases = list(program.phases)
    at = next(n for n, phase in enumerate(phases) if phase.kind is of)
    phases[at] = dataclasses.replace(phases[at], **fields)
    return dataclasses.replace(program, phases=tuple(phases))


EXCHANGE = {"kind": PhaseKind.EXCHANGE, "part": True, "exchange": print}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PhaseKind.EMBED, {"target": Buffer.INPUT}),
        (PhaseKind.EMBED, {"matrices": ()}),
        (PhaseKind.MAKE_INPUT, {"width": 0}),
        (PhaseKind.MAKE_INPUT, {"width": 61}),
        (PhaseKind.MAKE_INPUT, {"source": Buffer.INNER}),
        (PhaseKind.HEADS, {"attention": None}),
        (PhaseKind.HEADS, {"source": Buffer.INNER}),
        (PhaseKind.ATTEND, {"source": Buffer.RESIDUAL}),
        (PhaseKind.PRODUCT, {"source": Buffer.INNER}),
        (PhaseKind.PRODUCT, {"target": Buffer.KEYS, "matrices": ()}),
        (PhaseKind.GATE_UP, {"source": Buffer.INNER}),
        (PhaseKind.LOGITS, {"norm": None}),
        (PhaseKind.LOGITS, {"ends_layer": True}),
        (PhaseKind.EMBED, {"only_wanted": True}),
        (PhaseKind.LOGITS, {"only_wanted": True}),
        (PhaseKind.MAKE_INPUT, {"only_wanted": True}),
        (PhaseKind.PRODUCT, {"first": 16}),
        (PhaseKind.PRODUCT, {"part": True, "first": 16, "width": 60}),
        (PhaseKind.PRODUCT, {"part": True, "first": -16, "width": 60}),
        (PhaseKind.HEADS, {"part": True, "first": 16, "width": 16}),
        (PhaseKind.ATTEND, {"part": True, "first": 8, "width": 1000}),
        (PhaseKind.GATE_UP, {"part": True, "first": 16, "width": 1000}),
        (PhaseKind.GATE_UP, {"part": True, "first": 32, "width": 64}),
        (PhaseKind.GATE_UP, {"part": True, "width": 1000, "forms": 4}),
        (PhaseKind.LOGITS, {"part": True, "first": 16}),
        (PhaseKind.MAKE_INPUT, EXCHANGE | {"width": 0}),
        (PhaseKind.MAKE_INPUT, EXCHANGE | {"part": False}),
        (PhaseKind.MAKE_INPUT, EXCHANGE | {"source": Buffer.INPUT}),
    ],
    ids=str,
)
def test_phases_with_wrong_buffers_or_widths_are_refused(
    kind: PhaseKind, fields: dict[str, object]
) -> None:
    program = SlowDecoder(Sizes()).packed(num_blocks=1).program
    with pytest.raises(ValueError, match=r"phase \d+ \(.*\) doesn't fit what comes before it"):
        Decoder(changed(program, kind, **fields), 16, 1, cache="float32", threads=1)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PhaseKind.ROUTE, {"active": 4}),
        (PhaseKind.ROUTE, {"groups": 2}),
        (PhaseKind.EXPERTS_UP, {"downs": 5}),
        (PhaseKind.COMBINE, {"gates": 5}),
    ],
    ids=str,
)
def test_experts_that_do_not_fit(kind: PhaseKind, fields: dict[str, int]) -> None:
    """More active than there are, uneven groups, matrices of another shape."""
    said = ExpertsSpec(count=3, active=2, inner=90)
    layer = LayerSpec(feed_forward=FeedForwardSpec(experts=said))
    program = SlowDecoder(Sizes(specs=(layer,))).packed(num_blocks=1).program
    found = next(each.experts for each in program.phases if each.experts is not None)
    other = (random_source("F32", 5, 60).packed(),) * 3
    wrong = {n: other if n in ("gates", "downs") else value for n, value in fields.items()}
    spoilt = changed(program, kind, experts=dataclasses.replace(found, **wrong))
    with pytest.raises(ValueError, match=rf"\({kind.name}\) doesn't fit"):
        Decoder(spoilt, 16, 1, cache="float32", threads=1)


def test_an_exchange_with_nobody() -> None:
    program = SlowDecoder(Sizes()).packed(num_blocks=1).program
    spoilt = changed(program, PhaseKind.MAKE_INPUT, **EXCHANGE | {"exchange": None})
    with pytest.raises(ValueError, match="phase 1 exchanges something with nobody"):
        Decoder(spoilt, 16, 1, cache="float32", threads=1)


def test_a_program_without_threads() -> None:
    program = SlowDecoder(Sizes()).packed(num_blocks=1).program
    with pytest.raises(ValueError, match="phases runs on 0 threads"):
        Decoder(program, 16, 1, cache="float32", threads=0)
