"""What a model hears with: a tower over prepared sounds, and its projector."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.model.audio_spec import (
    AudioSpec,
    AudioTowerSpec,
    BlockConformerSpec,
    BlockTowerSpec,
    ConformerSpec,
    EmbedderProjector,
    LinearProjector,
    NarrowProjector,
    NormedProjector,
    QueryProjector,
    StackProjector,
)
from penstock.model.config import ModelConfig
from penstock_kernels import reference
from penstock_kernels.reference import encoder as kernels
from penstock_worker.media.block_conformer import (
    BlockConformer,
    WindowQueries,
    of_block_conformer,
)
from penstock_worker.media.block_tower import BlockTower
from penstock_worker.media.conformer import ConformerTower
from penstock_worker.media.embedder import Embedder, of_embedder
from penstock_worker.media.pieces import MILLION, Pieces, whole
from penstock_worker.media.unfit import UnfitItem
from penstock_worker.vision.layer import TowerLayer, TowerNorm, TowerProduct
from penstock_worker.vision.mmproj_names import IN_LAYER
from penstock_worker.vision.rows import ONE_THREAD, RowThreads, attention_work
from penstock_worker.weights.files import read_tensors
from penstock_worker.weights.opening import open_tower_weights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

_TOWER = re.compile(r"^(?:model\.)?(?:encoder|audio_tower)\.")
_HUB_LAYER = re.compile(
    r"^layers\.(\d+)\.(.+?)(?:\.linear)?(\.weight|\.bias|\.(?:in|out)put_(?:min|max))$"
)
_HUB_MODULE = re.compile(r"^(.+?)(\.weight|\.bias)$")

_HUB_IN_LAYER = {
    "self_attn_layer_norm": "norm1",
    "final_layer_norm": "norm2",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.out_proj": "out_proj",
    "fc1": "up_proj",
    "fc2": "down_proj",
}
_OF_TOWER = {
    "embed_positions": "position_embedding",
    "layer_norm": "last_norm",
    "ln_post": "last_norm",
    "proj1": "projector.1",
    "proj2": "projector.2",
}
_PROJECTOR = re.compile(r"^(?:model\.)?(?:multi_modal_projector|embed_audio)\.")
_QUERIES = re.compile(r"^(?:model\.)?projector\.")
"""What Granite Speech has behind its encoder."""
_OF_PROJECTOR = {
    "linear": "projector",
    "linear_1": "projector.1",
    "linear_2": "projector.2",
    "embedding_projection": "projector",
}
ZERO_BIASES = ("k_proj",)
"""Modules of every layer without biases, where others that share the product have some."""


def from_hub(name: str) -> str | None:
    """Returns our name for a tensor of a tower or a projector; None for another half's. An unknown
    name stays as it is, without its prefix."""
    if _QUERIES.match(name):
        return name.removeprefix("model.")
    if (found := of_embedder(name)) is not None:
        return found
    if _PROJECTOR.match(name):
        return _known(_PROJECTOR.sub("", name), _OF_PROJECTOR)
    if not _TOWER.match(name) or name.endswith(".num_batches_tracked"):
        return None
    inner = _TOWER.sub("", name)
    layer = _HUB_LAYER.fullmatch(inner)
    if layer is not None:
        number, module, kind = layer.groups()
        return f"layers.{number}.{_HUB_IN_LAYER.get(module, module)}{kind}"
    return _known(inner, _OF_TOWER)


def _known(name: str, modules: dict[str, str]) -> str:
    match = _HUB_MODULE.fullmatch(name)
    return name if match is None else modules.get(match[1], match[1]) + match[2]


MEL = "mel"
"""The name of a prepared sound's tensor: float32 [chunks, bins, windows]."""


class UnfitSound(UnfitItem):
    """The tower can't take the sound."""


class AudioModel:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(self, config: ModelConfig, weights: Weights, threads: int = 1) -> None:
        """`threads`: that encode a sound on a CPU.

        Raises UnsupportedModel for a model that doesn't hear, and for weights that don't fit."""
        if config.audio is None:
            raise UnsupportedModel("the model takes no audio")
        self.spec: AudioSpec = config.audio
        self._tower = load_sound_tower(self.spec.tower, weights, RowThreads(threads))
        self._projector = load_sound_projector(self.spec, weights, config.hidden_size)
        self._divisible = weights.device.type == "cpu"
        weights.finish()

    def read(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the spectrogram that an item's tensors hold, [chunks, bins, windows]. Raises
        UnfitSound."""
        if set(tensors) != {MEL}:
            raise UnfitSound(
                f"a prepared sound has {MEL}, and not {', '.join(sorted(tensors)) or 'nothing'}"
            )
        mel, spec = tensors[MEL], self.spec
        bins = spec.tower.mel_bins
        if mel.dtype != np.float32 or mel.ndim != 3 or not mel.size or mel.shape[1] != bins:
            raise UnfitSound(
                f"a sound is {mel.dtype} of shape {mel.shape}; float32 [chunks, {bins}, windows] "
                "is needed"
            )
        chunks, _, frames = mel.shape
        if not spec.takes(chunks, frames):
            raise UnfitSound(f"a sound has {chunks} chunks of {frames} windows; {spec.needed}")
        return mel

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        """Returns MediaReady.work of an item.

        Raises UnfitSound if the tower can't take what an item's tensors hold, or if that isn't
        what was said of it."""
        chunks, _, frames = self.read(tensors).shape
        found = self.spec.rows(chunks, frames)
        if found != rows or grid:
            raise UnfitSound(
                f"the sound becomes {found} rows without a grid; {rows} with {grid or ()} were "
                "announced"
            )
        return -(-chunks * self._tower.work(frames) // MILLION) if self._divisible else 0

    def encode(
        self, tensors: Mapping[str, np.ndarray], layer_done: Callable[[], None] = lambda: None
    ) -> Tensor:
        """Returns [rows, hidden], in order of time. `layer_done` is called after each layer."""
        return whole(self.pieces(tensors, layer_done))

    def pieces(
        self, tensors: Mapping[str, np.ndarray], layer_done: Callable[[], None] = lambda: None
    ) -> Pieces[Tensor]:
        """`encode` with pauses."""
        mel = torch.from_numpy(self.read(tensors).copy())
        vectors = yield from self._tower.pieces(mel, layer_done)
        rows = self._projector(vectors)
        if self.spec.row_multiplier != 1.0:
            rows = rows * self.spec.row_multiplier
        return rows.contiguous()


# Names of the tensors that hear in llama.cpp's mmproj files, and ours.

_LAYER = re.compile(r"a\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_MODULES = {
    "a.conv1d.1": "conv1",
    "a.conv1d.2": "conv2",
    "a.position_embd": "position_embedding",
    "a.post_ln": "last_norm",
    "mm.a.fc": "projector",
    "mm.a.mlp.1": "projector.1",
    "mm.a.mlp.2": "projector.2",
}
_FLAT = frozenset({"conv1.bias", "conv2.bias"})


_CONFORMER_LAYER = re.compile(r"a\.blk\.(\d+)\.(\w+)\.(weight|bias|(?:in|out)put_(?:min|max))")
_IN_CONFORMER = {
    "ffn_norm": "feed_forward1.pre_layer_norm",
    "ffn_up": "feed_forward1.ffw_layer_1",
    "ffn_down": "feed_forward1.ffw_layer_2",
    "ffn_post_norm": "feed_forward1.post_layer_norm",
    "ffn_norm_1": "feed_forward2.pre_layer_norm",
    "ffn_up_1": "feed_forward2.ffw_layer_1",
    "ffn_down_1": "feed_forward2.ffw_layer_2",
    "ffn_post_norm_1": "feed_forward2.post_layer_norm",
    "attn_pre_norm": "norm_pre_attn",
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_k_rel": "self_attn.relative_k_proj",
    "per_dim_scale": "self_attn.per_dim_scale",
    "attn_out": "self_attn.post",
    "attn_post_norm": "norm_post_attn",
    "conv_norm": "lconv1d.pre_layer_norm",
    "conv_pw1": "lconv1d.linear_start",
    "conv_dw": "lconv1d.depthwise_conv1d",
    "norm_conv": "lconv1d.conv_norm",
    "conv_pw2": "lconv1d.linear_end",
    "ln2": "norm_out",
}
_CONFORMER_MODULES = {
    "a.conv1d.0": "subsample_conv_projection.layer0.conv",
    "a.conv1d.0.norm": "subsample_conv_projection.layer0.norm",
    "a.conv1d.1": "subsample_conv_projection.layer1.conv",
    "a.conv1d.1.norm": "subsample_conv_projection.layer1.norm",
    "a.input_projection": "subsample_conv_projection.input_proj_linear",
    "a.pre_encode.out": "output_proj",
    "mm.a.input_projection": "projector",
}


def of_conformer(name: str) -> str | None:
    """Returns our name for a tensor of Gemma 4's file; None for what the model sees with."""
    layer = _CONFORMER_LAYER.fullmatch(name)
    if layer is not None and layer[2] in _IN_CONFORMER:
        return f"layers.{layer[1]}.{_IN_CONFORMER[layer[2]]}.{layer[3]}"
    module, _, kind = name.rpartition(".")
    if module in _CONFORMER_MODULES:
        return f"{_CONFORMER_MODULES[module]}.{kind}"
    return name if name.startswith(("a.", "mm.a.")) else None


def from_mmproj(name: str) -> str | None:
    """Returns our name for a tensor. An unknown name stays."""
    layer = _LAYER.fullmatch(name)
    if layer is not None and layer[2] in IN_LAYER:
        return f"layers.{layer[1]}.{IN_LAYER[layer[2]]}.{layer[3]}"
    module, _, kind = name.rpartition(".")
    return f"{_MODULES[module]}.{kind}" if module in _MODULES else name


def mmproj_sounds(path: str) -> dict[str, StoredTensor]:
    """Returns a file's tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    file = GGUFFile(path, vocabulary=False)
    if file.metadata.get("clip.audio.projector_type") == "gemma4a":
        return read_tensors(file, of_conformer, _FLAT)
    granite = file.metadata.get("clip.projector_type") == "granite_speech"
    return read_tensors(file, of_block_conformer if granite else from_mmproj, _FLAT)


open_audio_tower = partial(
    open_tower_weights, from_hub=from_hub, read_mmproj=mmproj_sounds, zero_biases=ZERO_BIASES
)
"""Opens what a model hears with (see open_tower_weights)."""


# From a tower's vectors of a sound to rows of the decoder's size.


class SoundProjector(ABC):
    """Maps a tower's output, [vectors, its hidden size], to [rows, the decoder's]."""

    @abstractmethod
    def __call__(self, vectors: Tensor) -> Tensor: ...


class _AsTheyAre(SoundProjector):
    def __call__(self, vectors: Tensor) -> Tensor:
        return vectors


class _Linear(SoundProjector):
    def __init__(self, weights: Weights, inputs: int, outputs: int) -> None:
        self._product = TowerProduct.load(weights, [("projector", outputs)], inputs)

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._product(vectors)


class _Narrow(SoundProjector):
    def __init__(self, spec: NarrowProjector, weights: Weights, inputs: int, outputs: int) -> None:
        self._activation = spec.activation
        self._first = TowerProduct.load(weights, [("projector.1", inputs)], inputs)
        self._second = TowerProduct.load(weights, [("projector.2", outputs)], inputs)

    def __call__(self, vectors: Tensor) -> Tensor:
        inner = reference.plain_activation(self._first(vectors), self._activation)
        return self._second(inner)


class _Normed(SoundProjector):
    def __init__(self, spec: NormedProjector, weights: Weights, inputs: int, outputs: int) -> None:
        self._product = TowerProduct.load(weights, [("projector", outputs)], inputs, bias=False)
        self._ones = torch.ones(inputs, dtype=weights.dtype, device=weights.device)
        self._eps = spec.eps

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._product(reference.rms_norm(vectors, self._ones, self._eps))


class _Stack(SoundProjector):
    def __init__(self, spec: StackProjector, weights: Weights, inputs: int, outputs: int) -> None:
        wide = inputs * spec.factor
        self._wide = wide
        self._activation = spec.activation
        self._first = TowerProduct.load(weights, [("projector.1", outputs)], wide, bias=False)
        self._second = TowerProduct.load(weights, [("projector.2", outputs)], outputs, bias=False)

    def __call__(self, vectors: Tensor) -> Tensor:
        stacked = vectors.reshape(-1, self._wide)
        inner = reference.plain_activation(self._first(stacked), self._activation)
        return self._second(inner)


def load_sound_projector(
    spec: AudioSpec, weights: Weights, outputs: int
) -> SoundProjector | WindowQueries | Embedder:
    """`outputs` is the decoder's hidden size. Raises UnsupportedModel for weights that don't
    fit."""
    tower = spec.tower
    inputs = tower.given_size if isinstance(tower, ConformerSpec) else tower.hidden_size
    match spec.projector:
        case LinearProjector():
            return _Linear(weights, inputs, outputs)
        case StackProjector():
            return _Stack(spec.projector, weights, inputs, outputs)
        case NarrowProjector():
            return _Narrow(spec.projector, weights, inputs, outputs)
        case NormedProjector():
            return _Normed(spec.projector, weights, inputs, outputs)
        case EmbedderProjector():
            return Embedder(spec.projector, weights, inputs, outputs)
        case QueryProjector():
            return WindowQueries(spec.projector, weights, inputs, outputs)
        case None:
            return _AsTheyAre()


# A transformer over the windows of a sound (AudioTowerSpec).
#
# A sound is encoded by itself, chunk by chunk, so the shapes of all products depend on the sound
# alone, and so do its bits.

REACH = 3
"""Windows that a convolution reads."""


class SoundConvolution:
    """A convolution over time, with zeros before the first and after the last, and gelu."""

    def __init__(self, weights: Weights, name: str, inputs: int, outputs: int, step: int) -> None:
        """step: after every so many there is a result."""
        weight = weights.take(f"{name}.weight", (outputs, inputs, REACH))
        self._product = TowerProduct(weight.flatten(1), weights.take(f"{name}.bias", (outputs,)))
        self._step = step

    def work(self, count: int) -> int:
        """Multiplications for so many results."""
        return count * self._product.size

    def __call__(self, x: Tensor) -> Tensor:
        """Maps [count, inputs] to [ceil(count / step), outputs]."""
        around = functional.pad(x, (0, 0, 1, 1))
        windows = around.unfold(0, REACH, self._step).flatten(1)
        return reference.plain_activation(self._product(windows), "gelu")


class AudioTower:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(
        self, spec: AudioTowerSpec, weights: Weights, threads: RowThreads = ONE_THREAD
    ) -> None:
        """Raises UnsupportedModel for weights that don't fit."""
        size = spec.hidden_size
        self.dtype = weights.dtype
        self._convolutions = (
            SoundConvolution(weights, "conv1", spec.mel_bins, size, 1),
            SoundConvolution(weights, "conv2", size, size, 2),
        )
        self._positions = weights.take("position_embedding.weight", (spec.positions, size))
        self._layers = [
            TowerLayer(spec, weights, number, threads=threads) for number in range(spec.num_layers)
        ]
        self._last = TowerNorm(weights, "last_norm", size, spec.norm)
        self._spec = spec

    def work(self, frames: int) -> int:
        """Multiplications for a chunk of so many windows, more or less."""
        first, second = self._convolutions
        count = frames // 2
        of_layers = sum(count * layer.row_work for layer in self._layers)
        seen = len(self._layers) * attention_work([count], self._spec.hidden_size)
        return first.work(frames) + second.work(count) + of_layers + seen

    def pieces(self, mel: Tensor, layer_done: Callable[[], None] = lambda: None) -> Pieces[Tensor]:
        """Maps float32 [chunks, bins, windows] to [vectors, hidden]. `layer_done` is called after
        each layer of each chunk.

        A chunk with a window more than two for each vector is cut there: the last window is read,
        and has no vector of its own."""
        encoded = []
        for chunk in mel:
            encoded.append((yield from self._encoded(chunk, layer_done)))
        return torch.cat(encoded)

    def _encoded(self, mel: Tensor, layer_done: Callable[[], None]) -> Pieces[Tensor]:
        hidden = mel.t().to(self._positions.device, self.dtype)
        for convolution in self._convolutions:
            hidden = convolution(hidden)
            yield convolution.work(len(hidden))
        count = mel.shape[1] // 2
        hidden = kernels.pad_tiles(hidden[:count] + self._positions[:count])
        for layer in self._layers:
            hidden = yield from layer.pieces(hidden, [count])
            layer_done()
        hidden = hidden[:count]
        if self._spec.pooled:
            pairs = hidden[: count // 2 * 2].unflatten(0, (-1, 2))
            hidden = pairs.float().mean(1).to(hidden.dtype)
        return self._last(kernels.pad_tiles(hidden))[: len(hidden)]


def load_sound_tower(
    spec: AudioTowerSpec | BlockTowerSpec | ConformerSpec | BlockConformerSpec,
    weights: Weights,
    threads: RowThreads,
) -> AudioTower | BlockTower | ConformerTower | BlockConformer:
    """Raises UnsupportedModel for weights that don't fit."""
    if isinstance(spec, BlockConformerSpec):
        return BlockConformer(spec, weights, threads)
    if isinstance(spec, BlockTowerSpec):
        return BlockTower(spec, weights, threads)
    if isinstance(spec, ConformerSpec):
        return ConformerTower(spec, weights, threads)
    return AudioTower(spec, weights, threads)


class Hearing:
    """A model's tower."""

    def __init__(self, model: AudioModel, layer_done: Callable[[], None]) -> None:
        """`layer_done` is called after each of the tower's layers."""
        self._model = model
        self._layer_done = layer_done

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        return self._model.check(tensors, rows, grid)

    def encode(self, tensors: Mapping[str, np.ndarray]) -> Tensor:
        return self._model.encode(tensors, self._layer_done)

    def pieces(self, tensors: Mapping[str, np.ndarray]) -> Pieces[Tensor]:
        return self._model.pieces(tensors, self._layer_done)
