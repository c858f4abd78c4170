"""Pairs of FP8 values: the assembly that a GPU runs widens each and keeps its column apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock_kernels.triton.attention import paired_values
from tests.kernels.triton import ptx

WORDS = np.random.default_rng(1).permuted(
    np.arange(4 * 256, dtype=np.uint32).reshape(4, 256) & 255, axis=1
)
"""Every byte in each of a register's four places, beside others."""


@pytest.mark.parametrize(
    ("assembly", "dtype"),
    [
        (paired_values.TO_BFLOAT16.value, torch.bfloat16),
        (paired_values.TO_FLOAT16.value, torch.float16),
    ],
)
def test_the_assembly_widens_two_keys_columns(assembly: str, dtype: torch.dtype) -> None:
    word = sum(each << np.uint32(8 * place) for place, each in enumerate(WORDS))
    after = ptx.run(assembly, {"$2": word})
    held = torch.from_numpy(WORDS.astype(np.uint8)).view(torch.float8_e4m3fn).double()
    for register, columns in (("$0", held[0::2]), ("$1", held[1::2])):
        ours = ptx.halves(after[register], dtype).double()
        assert torch.equal(ours.nan_to_num(1000.0), columns.T.nan_to_num(1000.0)), register
        assert ours.isnan().any()
