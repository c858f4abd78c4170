"""The measured kernels' tensors lie as a worker's do."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from loadtest.gpu.extent import DRY
from loadtest.gpu.parts import kernels, kernels_attention
from loadtest.gpu.parts.steps import MODULE
from loadtest.gpu.shapes import TINY_LLAMA
from penstock_worker.attention.interface import CacheShape
from tests.interpreted_triton import DEVICE
from tests.worker.cuda import flash_attn_stand_in as stand_in

BATCH, CONTEXT = 2, 40


def test_keys_and_values_have_the_workers_strides() -> None:
    # Under the interpreter, which tests.interpreted_triton has chosen.
    from penstock_worker.attention.triton import TritonAttention
    from penstock_worker.forward.triton_limits import attention_of

    block = kernels_attention.BLOCK
    measured = kernels_attention.Shape(TINY_LLAMA, BATCH, CONTEXT - 1, 1).caches(DEVICE)
    shape = CacheShape.of(TINY_LLAMA, block, torch.bfloat16)
    blocks = BATCH * -(-CONTEXT // block)
    choices = attention_of(TINY_LLAMA, (torch.bfloat16,), batch_invariant=False)
    own = TritonAttention(shape, blocks, DEVICE, choices).of_layer(0)[:2]
    for mine, workers in zip(measured, own, strict=True):
        assert (mine.shape, mine.stride()) == (workers.shape, workers.stride())
        assert mine.dtype == workers.dtype


def test_flash_attention_is_measured_with_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what stands in for it, the result is that of the measured kernels."""
    monkeypatch.setitem(sys.modules, MODULE, stand_in)
    chunk = replace(DRY, chunks=((2, 16, 20),), decode=((1, 9),))
    cases = [each for each in kernels.attention(chunk, TINY_LLAMA) if "prefill" in each.op]
    ours, flash = (each for each in cases if "invariant" not in each.op)
    assert (flash.shape, flash.flops) == (ours.shape, ours.flops)
    results = []
    for case in (ours, flash):
        torch.manual_seed(1)
        results.append(case.make(DEVICE).work(None)().float())
    apart = (results[0] - results[1]).abs().max()
    assert 0 < apart < 0.02 * results[0].abs().max()
    monkeypatch.delitem(sys.modules, MODULE)
    assert not any("Flash" in each.op for each in kernels.attention(chunk, TINY_LLAMA))
