"""A recurrent layer's half that stands in the attention's place."""

from __future__ import annotations

from torch import Tensor

from penstock.model.recurrent_spec import GatedDeltaSpec, RecurrentSpec, ShortConvSpec
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.recurrent.gated_delta import GatedDelta
from penstock_worker.layers.recurrent.interface import Mixer
from penstock_worker.layers.recurrent.mamba2 import Mamba2
from penstock_worker.layers.recurrent.short_conv import ShortConv
from penstock_worker.layers.step import Step


class RecurrentLayer:
    """Maps [rows, hidden] to [rows, hidden], and moves the sequences' states on."""

    def __init__(self, layer: int, mixer: Mixer) -> None:
        """`layer`: counted from this rank's first layer."""
        self._layer = layer
        self.mixer = mixer

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        features = self.mixer.project(hidden)
        mixed = step.states.scan(self._layer, features, self.mixer.scan)
        return self.mixer.finish(mixed, features)

    @staticmethod
    def load(parts: Parts, layer: int, spec: RecurrentSpec) -> RecurrentLayer:
        """Loads layer number `layer` of the model."""
        return RecurrentLayer(layer - parts.shard.layers.start, load_mixer(parts, layer, spec))


AnyMixer = ShortConv | GatedDelta | Mamba2


def load_mixer(parts: Parts, layer: int, spec: RecurrentSpec) -> AnyMixer:
    """Loads the mixer of layer number `layer` of the model."""
    if isinstance(spec, ShortConvSpec):
        return ShortConv.load(parts, layer, spec)
    if isinstance(spec, GatedDeltaSpec):
        return GatedDelta.load(parts, layer, spec)
    return Mamba2.load(parts, layer, spec)
