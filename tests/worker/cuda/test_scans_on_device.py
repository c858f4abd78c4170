"""The scans of recurrent layers by the CUDA kernels: the reference's numbers, and the same bits
however a sequence is divided and wherever its checkpoints lie."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from penstock.model.recurrent_spec import Mamba1Spec, result_numbers, state_numbers
from penstock.protocol.to_worker import SlotWork
from penstock_kernels.triton.recurrent.states import LayerStates
from penstock_worker.layers.triton_recurrence import DeviceScan, scan_of
from tests.interpreted_triton import DEVICE
from tests.worker.cuda.states_on_device import EVERY, OneLayer
from tests.worker.models.test_recurrent_mixers import SPECS, features_of, mixer_of

pytestmark = pytest.mark.timeout(240)

TOKENS = 10
ON_DEVICE = [
    name
    for name, spec in SPECS.items()
    if name != "of one token" and not isinstance(spec, Mamba1Spec)  # which `triton` refuses
]
EACH = pytest.mark.parametrize("name", ON_DEVICE)


def layer_of(name: str) -> OneLayer:
    return OneLayer(state_numbers(SPECS[name]), result_numbers(SPECS[name]))


@cache
def alone(name: str) -> tuple[Tensor, Tensor]:
    """Results and state of all tokens at once, without checkpoints."""
    layer = layer_of(name)
    layer.admit(0, layer.blocks(TOKENS // EVERY))
    layer.states._held[0].checkpoints.clear()
    (found,) = layer.step(scan(name), [(0, 0, features_of(name)[:TOKENS])])
    return found, layer.state(0)


@cache
def scan(name: str) -> DeviceScan:
    return scan_of(mixer_of(name, DEVICE))


@EACH
def test_numbers_are_the_references(name: str) -> None:
    true_state = torch.zeros(state_numbers(SPECS[name]))
    true = mixer_of(name).scan(features_of(name)[:TOKENS], true_state)
    found, state = alone(name)
    assert true.std() > 0.001
    assert (found.cpu() - true).abs().max() < 1e-5 * true.abs().max()
    if len(true_state):
        assert (state.cpu() - true_state).abs().max() < 1e-5 * true_state.abs().max()


@EACH
def test_bits_are_a_sequences_own(name: str) -> None:
    """In pieces beside another sequence, with checkpoints within and behind them; the last token
    once more; and from a checkpoint on."""
    layer, mine = layer_of(name), features_of(name)[:TOKENS]
    other = features_of(name)[TOKENS:]
    kept = layer.blocks(TOKENS // EVERY)
    layer.admit(2, kept)
    layer.admit(0, layer.blocks(4))
    found = [
        layer.step(scan(name), [(0, 0, other[:3]), (2, 0, mine[:5])])[1],
        layer.step(scan(name), [(2, 5, mine[5:6]), (0, 3, other[3:6])])[0],
        layer.step(scan(name), [(2, 6, mine[6:9])])[0],
        layer.step(scan(name), [(0, 6, other[6:7]), (2, 9, mine[9:])])[1],
    ]
    wanted, state = alone(name)
    assert torch.equal(torch.cat(found), wanted)
    assert torch.equal(layer.state(2), state)
    again = layer.step(scan(name), [(2, 9, mine[9:]), (0, 7, other[7:8])])[0]
    assert torch.equal(again, wanted[9:])
    assert torch.equal(layer.state(2), state)
    for checkpoint in range(TOKENS // EVERY):
        start = EVERY * (checkpoint + 1)
        own = slice(checkpoint * layer.pieces, (checkpoint + 1) * layer.pieces)
        layer.admit(1, [*kept[own], *layer.blocks(2)], start)
        (rest,) = layer.step(scan(name), [(1, start, mine[start:])])
        assert torch.equal(rest, wanted[start:])
        assert torch.equal(layer.state(1), state)


@EACH
@pytest.mark.parametrize("rows", [9, 16])
def test_a_padded_step_has_the_same_bits(name: str, rows: int) -> None:
    """Chunks and a token, as graphs have them: in all of their rows, and in a part. Checkpoints lie
    within and behind a chunk; the last token comes once more. Padding gives zeros."""
    mine, other = features_of(name)[:TOKENS], features_of(name)[TOKENS:]
    steps = [
        [(0, 0, other[:3]), (2, 0, mine[:5])],
        [(2, 5, mine[5:6]), (0, 3, other[3:6])],
        [(2, 6, mine[6:])],
        [(2, 9, mine[9:]), (0, 6, other[6:7])],
    ]
    padded, plain = layer_of(name), layer_of(name)
    for layer in (padded, plain):
        layer.admit(2, layer.blocks(TOKENS // EVERY))
        layer.admit(0, layer.blocks(4))
    for work in steps:
        *found, left = padded.step(scan(name), work, rows)
        for ours, wanted in zip(found, plain.step(scan(name), work), strict=True):
            assert torch.equal(ours, wanted)
        assert len(left) == rows - sum(len(features) for _, _, features in work)
        assert not left.any()
        assert torch.equal(padded.pool, plain.pool)
        for slot in (0, 2):
            assert torch.equal(padded.state(slot), plain.state(slot))


def test_a_layer_that_is_broken_off_ends_its_sequences_state() -> None:
    """Nobody knows how far it came. A chunk begins anew with the state before it."""

    def broken(features: Tensor, states: LayerStates) -> Tensor:
        scan(name)(features, states)
        raise RuntimeError("broken off")

    name = "short convolution"
    layer, mine = layer_of(name), features_of(name)
    layer.admit(0, layer.blocks(4))
    (first,) = layer.step(scan(name), [(0, 0, mine[:3])])
    with pytest.raises(RuntimeError, match="broken off"):
        layer.step(broken, [(0, 3, mine[3:6])])
    layer.states.undo([SlotWork(0, 3, 3)])
    (rest,) = layer.step(scan(name), [(0, 3, mine[3:6])])
    assert torch.equal(torch.cat((first, rest)), alone(name)[0][:6])
    with pytest.raises(RuntimeError, match="broken off"):
        layer.step(broken, [(0, 6, mine[6:7])])
    layer.states.undo([SlotWork(0, 6, 1)])
    with pytest.raises(RuntimeError, match="slot 0: its state is lost; tokens follow 6"):
        layer.step(scan(name), [(0, 6, mine[6:7])])
