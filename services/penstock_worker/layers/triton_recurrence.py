"""Recurrent layers whose scans are Triton kernels."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from penstock.model.recurrent_spec import RecurrentSpec
from penstock_kernels.triton.recurrent.causal_conv import causal_conv
from penstock_kernels.triton.recurrent.gated_delta import DeltaHeads, gated_delta
from penstock_kernels.triton.recurrent.mamba2 import SelectiveSizes, mamba2
from penstock_kernels.triton.recurrent.states import LayerStates
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.recurrent.gated_delta import LENGTH_EPS, GatedDelta
from penstock_worker.layers.recurrent.mixers import (
    AnyMixer,
    Mamba2,
    ShortConv,
    load_mixer,
)
from penstock_worker.layers.step import Step
from penstock_worker.states.device_moves import DeviceStatesStep

DeviceScan = Callable[[Tensor, LayerStates], Tensor]
"""A Mixer's `scan` of all rows of a step: maps features, [rows, F], to [rows, V] float32, and moves
the states of all sequences on."""


class TritonRecurrence:
    """A Recurrence."""

    def __init__(self, layer: int, mixer: AnyMixer) -> None:
        """`layer`: counted from this rank's first layer."""
        self._layer = layer
        self._mixer = mixer
        self._scan = scan_of(mixer)

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        states = step.states
        if not isinstance(states, DeviceStatesStep):
            raise TypeError(f"layer {self._layer} is recurrent: its states must be on the device")
        features = self._mixer.project(hidden)
        with states.moved_on(self._layer) as own:
            mixed = self._scan(features, own)
        return self._mixer.finish(mixed, features)

    @staticmethod
    def load(parts: Parts, layer: int, spec: RecurrentSpec) -> TritonRecurrence:
        """Loads layer number `layer` of the model."""
        return TritonRecurrence(layer - parts.shard.layers.start, load_mixer(parts, layer, spec))


def scan_of(mixer: AnyMixer) -> DeviceScan:
    """A scan on the device that computes what `mixer.scan` does, up to rounding."""
    if isinstance(mixer, ShortConv):
        return _short_conv(mixer)
    if isinstance(mixer, GatedDelta):
        return _gated_delta(mixer)
    if isinstance(mixer, Mamba2):
        return _mamba2(mixer)
    raise TypeError(f"{type(mixer).__name__} has no scan on the device")


def _short_conv(mixer: ShortConv) -> DeviceScan:
    width, conv = mixer.spec.width, mixer.conv

    def scan(features: Tensor, states: LayerStates) -> Tensor:
        return causal_conv(states, features, 2 * width, conv.weight, conv.bias, gate=0)

    return scan


def _gated_delta(mixer: GatedDelta) -> DeviceScan:
    spec, conv, constants = mixer.spec, mixer.conv, mixer.constants
    heads = DeltaHeads(
        spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim, tiled=spec.tiled
    )

    def scan(features: Tensor, states: LayerStates) -> Tensor:
        convolved = causal_conv(states, features, 0, conv.weight, conv.bias)
        return gated_delta(
            states,
            features,
            convolved,
            (constants.rate, constants.time_bias),
            heads,
            strength=spec.channels + spec.values,
            matrix=(spec.kernel - 1) * spec.channels,
            eps=LENGTH_EPS,
        )

    return scan


def _mamba2(mixer: Mamba2) -> DeviceScan:
    spec, conv, constants = mixer.spec, mixer.conv, mixer.constants
    most = float("inf") if spec.time_step_max is None else spec.time_step_max
    sizes = SelectiveSizes(
        spec.heads, spec.head_dim, spec.groups, spec.state, (spec.time_step_min, most)
    )

    def scan(features: Tensor, states: LayerStates) -> Tensor:
        convolved = causal_conv(states, features, spec.inner, conv.weight, conv.bias)
        return mamba2(
            states,
            features,
            convolved,
            (constants.rate, constants.time_bias, constants.skip),
            sizes,
            time=spec.inner + spec.channels,
            matrix=(spec.kernel - 1) * spec.channels,
        )

    return scan
