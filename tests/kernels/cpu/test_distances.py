"""Attention whose scores know distances, in the C++ library: against float64, over several splits
of keys, and what it can't be beside."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import DecoderStep
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, pack
from penstock_kernels.cpu.operands import Attention, DistanceBiases, DistanceProducts
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("loaded")]

HEADS, DIM, LONGEST, VOCAB = 2, 16, 300, 50
SIZE = HEADS * DIM


class Case:
    """Embeddings, and one attention over them. A row of the result is what attention gives."""

    def __init__(self, *, keys: bool = True, queries: bool = True, group: int = 1) -> None:
        rng = np.random.default_rng(3)

        def numbers(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        kv = HEADS // group
        self.group, self.kv = group, kv
        self.words = numbers(VOCAB, SIZE)
        outputs = (SIZE, kv * DIM, kv * DIM)
        self.matrices = [numbers(each, SIZE) / 4 for each in outputs]
        self.keys = numbers(HEADS, 2 * LONGEST - 1, DIM) if keys else None
        self.queries = numbers(HEADS, 2 * LONGEST - 1, DIM) if queries else None

    def program(self, **changes: object) -> Program:
        def packed(matrix: np.ndarray) -> PackedMatrix:
            data = np.ascontiguousarray(matrix).view(np.uint8).reshape(-1)
            return pack("F32", data, matrix.shape, kind=MatrixKind.F32)

        attention = Attention(
            layer=0,
            heads=HEADS,
            kv_heads=self.kv,
            head_dim=DIM,
            scale=0.11,
            both_ways=True,
            distances=DistanceProducts.of(self.keys, self.queries),
        )
        attention = dataclasses.replace(attention, **changes)
        matrices = tuple(map(packed, self.matrices))
        forms = matrices[0].form
        whole = packed(np.eye(SIZE, dtype=np.float32))
        into = Phase(kind=PhaseKind.MAKE_INPUT, target=Buffer.INPUT, width=SIZE, forms=forms)
        phases = (
            Phase(kind=PhaseKind.EMBED, matrices=(packed(self.words),)),
            into,
            Phase(
                kind=PhaseKind.HEADS,
                source=Buffer.INPUT,
                target=Buffer.QUERIES,
                attention=attention,
                matrices=matrices,
            ),
            Phase(
                kind=PhaseKind.ATTEND,
                source=Buffer.QUERIES,
                target=Buffer.MIXED,
                attention=attention,
            ),
            # Which also joins what threads have left of several splits.
            dataclasses.replace(into, source=Buffer.MIXED, attention=attention),
            Phase(
                kind=PhaseKind.PRODUCT,
                source=Buffer.INPUT,
                target=Buffer.RESULT,
                matrices=(whole,),
                adds=False,
                ends_layer=True,
            ),
            Phase(kind=PhaseKind.ROWS, source=Buffer.RESULT, width=SIZE),
        )
        return Program(phases, VOCAB)

    def wanted(self, tokens: np.ndarray) -> np.ndarray:
        """In float64, one pair of query and key after another."""
        x = self.words[tokens].astype(np.float64)
        query, key, value = (
            (x @ each.T.astype(np.float64)).reshape(len(x), -1, DIM) for each in self.matrices
        )
        out = np.zeros((len(x), HEADS, DIM))
        place = np.arange(len(x))
        for head in range(HEADS):
            shared = head // self.group
            for row in range(len(x)):
                scores = key[:, shared] @ query[row, head]
                apart = place - row + LONGEST - 1
                if self.keys is not None:
                    scores += self.keys[head, apart] @ query[row, head]
                if self.queries is not None:
                    scores += (self.queries[head, apart] * key[:, shared]).sum(1)
                weights = np.exp((scores - scores.max()) * float(np.float32(0.11)))
                out[row, head] = weights / weights.sum() @ value[:, shared]
        return out.reshape(len(x), SIZE)


def rows_of(decoder: Decoder, inputs: list[np.ndarray]) -> list[np.ndarray]:
    lengths = [len(each) for each in inputs]
    ends = np.cumsum([0, *lengths])
    blocks = np.cumsum([0, *(-(-each // 16) for each in lengths)])
    step = DecoderStep(
        tokens=np.concatenate(inputs).astype(np.int32),
        first_row=ends.astype(np.int32),
        starts=np.zeros(len(inputs), dtype=np.int32),
        tables=np.arange(blocks[-1], dtype=np.int32),
        first_block=blocks[:-1].astype(np.int32),
    )
    rows = decoder.logits(step, np.arange(ends[-1], dtype=np.int32))
    return np.split(rows, ends[1:-1])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "told",
    [{}, {"keys": False}, {"queries": False}, {"group": 2}],
    ids=["both", "queries alone", "keys alone", "heads that share keys"],
)
def test_scores_know_distances(told: dict[str, int], threads: int) -> None:
    case, rng = Case(**told), np.random.default_rng(4)
    decoder = Decoder(case.program(), 16, 64, cache="float32", threads=threads)
    inputs = [rng.integers(0, VOCAB, each) for each in (1, 15, 16, LONGEST, 33, 130)]
    crowd = rows_of(decoder, inputs)
    for tokens, found in zip(inputs, crowd, strict=True):
        assert np.abs(found - case.wanted(tokens)).max() < 2e-5
        (alone,) = rows_of(decoder, [tokens])
        assert np.array_equal(alone, found), f"{len(tokens)} tokens in company"


@pytest.mark.parametrize(
    ("cache", "changes"),
    [
        ("bfloat16", {}),
        ("int8", {}),
        ("float32", {"soft_cap": 5.0}),
        ("float32", {"biases": DistanceBiases.of(np.zeros((HEADS, 599), dtype=np.float32))}),
    ],
    ids=["half a cache", "bytes", "capped", "biases"],
)
def test_what_distances_cannot_be_beside(cache: str, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="doesn't fit what comes before it"):
        Decoder(Case().program(**changes), 16, 8, cache=cache, threads=1)
