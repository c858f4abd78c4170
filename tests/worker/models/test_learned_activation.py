"""xIELU, whose coefficients are learned: the reference against its definition in float64, and
coefficients that make no sense."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import pytest
import torch

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.model.layer_spec import XIELU, FeedForwardSpec
from penstock.prepare.gguf_config import read_config
from penstock_kernels.reference import xielu
from penstock_worker.layers.feed_forward import coefficients
from tests.worker.models.gguf_writing import write
from tests.worker.models.test_gguf_families import CONVERSIONS, OWN
from tests.worker.models.test_parity_families import make_theirs

SAID = XIELU(0.8, -0.3, 0.5, -1e-6)


def spec(said: XIELU) -> FeedForwardSpec:
    return FeedForwardSpec(activation="xielu", xielu=said, gated=False)


def test_equals_its_definition() -> None:
    """Also near 0, where e^x - 1 has few digits, and at both ends of the series."""
    found = coefficients(spec(SAID), None, "mlp")
    assert found is not None
    sizes = torch.logspace(-8, 1.5, 400)
    x = torch.cat((sizes, -sizes, torch.tensor([0.0, -0.5, -0.50001, -0.49999, -1e-6, -5e-7])))
    wide = x.double()
    above = math.log1p(math.exp(SAID.alpha_p)) * wide * wide
    curve = torch.expm1(wide.clamp(max=SAID.eps)) - wide
    below = (SAID.beta + math.log1p(math.exp(SAID.alpha_n))) * curve
    true = torch.where(wide > 0, above, below) + SAID.beta * wide
    assert torch.allclose(xielu(x[None], found)[0].double(), true, rtol=2e-6, atol=1e-12)


def test_a_row_is_the_same_in_any_company() -> None:
    rows = torch.randn(37, 53)
    found = coefficients(spec(SAID), None, "mlp")
    assert found is not None
    one_by_one = torch.cat(
        [xielu(rows[at : at + 1, : 53 - at % 5], found)[:, :40] for at in range(37)]
    )
    assert torch.equal(xielu(rows, found)[:, :40], one_by_one)


@pytest.mark.parametrize("said", [XIELU(math.nan, 0.1, 0.5, 0.0), XIELU(0.1, 0.1, math.inf, 0.0)])
def test_coefficients_that_are_not_finite_are_refused(said: XIELU) -> None:
    with pytest.raises(UnsupportedModel, match=r"layers\.0\.mlp\.act_fn has coefficients that"):
        coefficients(spec(said), None, "layers.0.mlp")


def test_a_gguf_file_has_one_for_each_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = gguf.GGUFWriter.add_xielu_beta
    monkeypatch.setattr(
        gguf.GGUFWriter, "add_xielu_beta", lambda self, values: add(self, values[:-1])
    )
    path = tmp_path / "model.gguf"
    write(path, make_theirs(*OWN["apertus-plain"]), CONVERSIONS["apertus-plain"])
    with pytest.raises(UnsupportedModel, match=r"xielu\.beta is .*; a list of 3 numbers is needed"):
        read_config(GGUFFile(path))
