"""Numbers of rows that give a row the same bits are found, and those that don't."""

from __future__ import annotations

import torch
from torch import Tensor

from loadtest.gpu.parts.bits import groups, matrices
from loadtest.gpu.report import to_markdown
from loadtest.gpu.shapes import LLAMA_8B
from tests.loadtest.test_gpu_report import document, part


def test_numbers_are_grouped_by_what_they_give() -> None:
    """A product that adds in another order above 4 rows, and in a third one for 7."""

    def product(x: Tensor, weight: Tensor) -> Tensor:
        extra = 0.0 if len(x) <= 4 else 1.0
        made = x @ weight.T + extra
        if len(x) == 7:
            made[0, 0] += 1.0  # One number of one row is enough.
        return made

    x, weight = torch.ones(9, 3), torch.ones(2, 3)
    found = groups(product, x, weight, (1, 2, 4, 5, 7, 9))
    assert sorted(found) == [[1, 2, 4], [5, 9], [7]]
    assert groups(lambda x, weight: x @ weight.T, x, weight, (1, 3)) == [[1, 3]]


def test_the_report_names_them() -> None:
    made = document()
    row = {"what": "bits", "product": "library", "shape": "qkv: 4 x 6", "groups": [[1, 2], [64]]}
    made["parts"]["bits"] = part("bits", row)
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in to_markdown(made).splitlines()]
    assert ["library, qkv: 4 x 6", "(1, 2) (64)"] in cells


def test_matrices_are_the_models() -> None:
    assert matrices(LLAMA_8B) == {
        "qkv": (6144, 4096),
        "out": (4096, 4096),
        "gate, up": (28672, 4096),
        "down": (4096, 14336),
    }
