"""Products by themselves, their inputs, and gates that aren't made in one go with what they
weigh."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

from penstock.model.layer_spec import FeedForwardSpec
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.operands import NormWeights
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_worker.forward.cpu.weights import LayerWeights

FLOATS = 1
"""Form of a product's input: pk::FLOATS in csrc/matrix_types.h."""


def product_into(
    matrix: PackedMatrix, target: Buffer, source: Buffer = Buffer.INPUT, scale: float = 1.0
) -> Phase:
    """A product that isn't added to anything."""
    return Phase(
        kind=PhaseKind.PRODUCT,
        source=source,
        target=target,
        matrices=(matrix,),
        adds=False,
        scale=scale,
    )


def residual_for(
    *readers: PackedMatrix | None, width: int, norm: NormWeights | None = None
) -> Phase:
    """The residual as the input of products. norm: None leaves it as it is."""
    return Phase(
        kind=PhaseKind.MAKE_INPUT,
        target=Buffer.INPUT,
        width=width,
        norm=norm,
        forms=forms_of(*readers),
        waits=False,
    )


def forms_of(*readers: PackedMatrix | None) -> int:
    """Returns the forms in which these matrices read their input. None is no matrix."""
    forms = 0
    for matrix in readers:
        forms |= 0 if matrix is None else matrix.form
    return forms


def sparsely_gated(spec: FeedForwardSpec, weights: LayerWeights) -> Iterator[Phase]:
    """The inner values of a feed-forward whose gate is mostly zero: its limit depends on all of the
    gate's numbers, which are there before any of them weighs anything. Attention has no more use
    for QUERIES."""
    gate, up, down = weights.gate, weights.up, weights.down
    if gate is None or up is None or down is None:
        raise ValueError("a sparse gate belongs to a gated feed-forward")
    yield product_into(gate, Buffer.QUERIES)
    yield Phase(
        kind=PhaseKind.CUT_GATE,
        target=Buffer.QUERIES,
        width=gate.struct.outputs,
        scale=NormalDist().inv_cdf(spec.sparsity),
    )
    yield Phase(
        kind=PhaseKind.GATE_BY,
        source=Buffer.INPUT,
        target=Buffer.INNER,
        beside=Buffer.QUERIES,
        matrices=(None, up),
        activation=spec.activation,
        forms=forms_of(down),
    )
