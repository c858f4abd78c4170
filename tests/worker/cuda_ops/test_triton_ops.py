"""The CUDA kernels as Ops, against the reference's and against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock_kernels.triton.linear import weight_only
from penstock_kernels.triton.linear.fp8_linear import fp8_linear, quantise_fp8
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.quantisation import registry
from penstock_worker.quantisation.fp8 import LIBRARY_ROWS, FP8Product
from penstock_worker.quantisation.registry import check_quantization
from tests.kernels.triton.closeness import UNITS, assert_close

pytestmark = pytest.mark.timeout(300)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 1, 1), (3, 67, 129), (66, 130, 31)])
def test_products_on_the_device_equal_torchs(
    rows: int,
    outputs: int,
    inputs: int,
    bias: bool,
    batch_invariant: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    ops = TritonOps(device, dtype, batch_invariant=batch_invariant)
    x, weight = drawn(1, rows, inputs).to(dtype), drawn(2, outputs, inputs).to(dtype)
    added = drawn(3, outputs).to(dtype) if bias else None
    wanted = REFERENCE.product(weight, added)(x)
    # The reference rounds before it adds the bias.
    roundings = 2 if bias else 1
    assert_close(ops.product(weight, added)(x.to(device)), wanted, floats=64, roundings=roundings)
    # Logits aren't rounded at all.
    logits = REFERENCE.product(weight.float())(x.float())
    assert_close(ops.head(weight)(x.to(device)), logits, floats=64)


@pytest.mark.parametrize(
    ("rows", "outputs", "dtype", "batch_invariant", "by_library"),
    [
        (LIBRARY_ROWS, 48, torch.bfloat16, False, True),
        (LIBRARY_ROWS - 1, 48, torch.bfloat16, False, False),
        (LIBRARY_ROWS, 48, torch.bfloat16, True, False),
        (LIBRARY_ROWS, 48, torch.float16, False, False),
        (LIBRARY_ROWS, 50, torch.bfloat16, False, False),
    ],
)
def test_the_librarys_products_in_fp8(
    rows: int,
    outputs: int,
    dtype: torch.dtype,
    batch_invariant: bool,
    by_library: bool,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where they may be taken, and that they mean what our kernel's do."""
    calls: list[object] = []
    library = torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *a, **k: calls.append(a) or library(*a, **k))
    x, bias = drawn(1, rows, 160).to(dtype).to(device), drawn(3, outputs).to(dtype).to(device)
    levels, scales = quantise_fp8(drawn(2, outputs, 160).to(device))
    ours = fp8_linear(x, levels, scales, bias)
    found = FP8Product(levels, scales, bias, batch_invariant)(x)
    assert bool(calls) == by_library
    assert found.dtype == dtype
    assert torch.allclose(found.float(), ours.float(), rtol=2**-7, atol=0.05)
    assert by_library or torch.equal(found, ours)


MANY_ROWS = 33


@pytest.fixture
def unpacked_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MANY_ROWS", MANY_ROWS)


@pytest.mark.usefixtures("unpacked_early")
@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "fp8"])
def test_batch_invariant_rows_are_the_same_alone(quantization: str, device: torch.device) -> None:
    """However many rows there are, no other way is taken."""
    x = drawn(1, MANY_ROWS + 1, 32).bfloat16().to(device)
    ops = TritonOps(device, torch.bfloat16, batch_invariant=True, quantization=quantization)
    product = ops.product(drawn(2, 9, 32))
    whole = product(x)
    for rows in (slice(0, 1), slice(MANY_ROWS - 1, None)):
        assert torch.equal(product(x[rows]), whole[rows])


@pytest.mark.parametrize("size", [1, 65, 300])
def test_norms_and_gates(size: int, dtype: torch.dtype, device: torch.device) -> None:
    ops = TritonOps(device, dtype)
    x, weight = drawn(1, 5, size).to(dtype), drawn(2, size).to(dtype)
    there = weight.to(device)
    assert_close(ops.rms_norm(x.to(device), there, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))
    heads = drawn(3, 5, 3, size).to(dtype)
    assert_close(
        ops.rms_norm(heads.to(device), there, 1e-5), REFERENCE.rms_norm(heads, weight, 1e-5)
    )
    ours, wanted = drawn(4, 5, size).to(dtype).to(device), drawn(4, 5, size).to(dtype)
    normed = ops.add_rms_norm(x.to(device), ours, there, 1e-5)
    assert_close(normed, REFERENCE.add_rms_norm(x, wanted, weight, 1e-5))
    assert torch.equal(ours.cpu(), wanted)
    gate_up = drawn(5, 5, 2 * size).to(dtype)
    for kind in ("silu", "gelu_tanh"):
        wanted = REFERENCE.activate(gate_up, kind, gated=True)
        assert_close(ops.activate(gate_up.to(device), kind, gated=True), wanted)


def allowed_error(x: Tensor, weight: Tensor, quantization: str, group: int) -> Tensor:
    """[rows, outputs] float64: half a step of each weight's scale; of FP8, which has 3 bits after
    the point, 2**-4 of each number."""
    size = x.double().abs() @ weight.double().abs().T
    if quantization == "fp8":
        # Numbers near zero are off by half of the smallest step, 2**-9, of their scale / 448.
        least = weight.double().abs().amax(1) * x.double().abs().amax(1)[:, None]
        return size * 0.13 + least * x.shape[1] * 2**-17
    steps = weight.double().unflatten(1, (-1, group)).abs().amax(-1)
    steps = (steps / (127 if quantization == "int8" else 7)).repeat_interleave(group, 1)
    return x.double().abs() @ steps.T / 2


@pytest.mark.usefixtures("unpacked_early")
@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
@pytest.mark.parametrize(
    ("rows", "group", "inputs"), [(3, 128, 256), (20, 64, 64), (MANY_ROWS + 1, 32, 32)]
)
def test_quantised_products(
    quantization: str, rows: int, group: int, inputs: int, dtype: torch.dtype, device: torch.device
) -> None:
    ops = TritonOps(device, dtype, quantization=quantization)
    x, weight, bias = drawn(1, rows, inputs).to(dtype), drawn(2, 35, inputs), drawn(3, 35).to(dtype)
    ours = ops.product(weight, bias)(x.to(device)).cpu()
    wanted = x.double() @ weight.double().T + bias.double()
    size = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    # And the roundings of weights, where they were unpacked, and of the result.
    bound = allowed_error(x, weight, quantization, group) + size * (2e-6 + UNITS[dtype])
    assert ours.dtype == dtype
    assert ((ours.double() - wanted).abs() <= bound).all()


def test_the_largest_group_that_divides(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []

    def packing(weight: Tensor, *, bits: int, group: int) -> weight_only.PackedWeights:
        groups.append(group)
        return pack(weight, bits=bits, group=group)

    pack = weight_only.pack
    monkeypatch.setattr(weight_only, "pack", packing)
    ops = TritonOps(device, torch.bfloat16, quantization="int4")
    for inputs in (384, 192, 96):
        ops.product(drawn(1, 4, inputs))
    assert groups == [128, 64, 32]


def test_what_no_group_divides_stays_as_it_is(
    device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    x, weight = drawn(1, 3, 100), drawn(2, 7, 100)
    plain = TritonOps(device, torch.float32).product(weight)
    ops = TritonOps(device, torch.float32, quantization="int8")
    assert torch.equal(ops.product(weight)(x.to(device)), plain(x.to(device)))
    (record,) = caplog.records
    assert "a matrix stays unquantised" in record.getMessage()


def test_the_head_is_the_embedding(device: torch.device) -> None:
    weight = drawn(1, 9, 128).to(device)
    for quantization in ("none", "int8", "fp8"):
        head = TritonOps(device, torch.float32, quantization=quantization).head(weight)
        assert head.weight.data_ptr() == weight.data_ptr()  # type: ignore[attr-defined]


def test_what_a_device_cannot_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    with pytest.raises(StartupError, match=r"8\.9 or higher; A100 has 8\.0, and can do none, int8"):
        TritonOps(cuda, torch.bfloat16, quantization="fp8")
    check_quantization("int4", cuda)
    with pytest.raises(StartupError, match="'int3'; allowed on CUDA are none, int8, int4, fp8"):
        check_quantization("int3", cuda)
