"""The tensors of heads that draft, by our names.

A head has `layers.0`, `norm`, `lm_head` and `embed_tokens` as a model of one layer has them, and so
has each layer of a head with several. One of EAGLE-3 has `fc` in front, and norms
`layers.0.hidden_norm` and `layers.0.input_layernorm` of the two halves of what its attention reads;
`ids`, int64, are differences between the served model's ids and its own. One of the checkpoint's
own (MTP) has `enorm`, `hnorm` and `eh_proj` in front, and `served_norm`, that after the served
model's last layer, if it reads what that gives. Where layers mix several residuals, it has `e_proj`
and `h_proj` in the place of `eh_proj`, and `hc_head` after the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch

from penstock.errors import StartupError, UnsupportedModel
from penstock.families.family import JOIN, LAYER_BEHIND_THE_LAST, OF_EMBEDDING, OF_HIDDEN
from penstock.families.finding import served_family
from penstock.families.tensor_names import TensorNames
from penstock.model.config import HeadConfig, ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.factors import multiply_rows
from penstock_worker.weights.family_names import by_our_names, in_file
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.filled import fill_values
from penstock_worker.weights.gguf_files import gguf_by_our_names, named_tensors
from penstock_worker.weights.lacking_names import decoder_name
from penstock_worker.weights.names import to_gguf, with_head_from_hub
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.quantised import QuantisedWeights
from penstock_worker.weights.repacking import LAYOUTS
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

EMBEDDING, HEAD, NORM = "embed_tokens.weight", "lm_head.weight", "norm.weight"
SERVED_NORM, IDS = "served_norm.weight", "ids"
_ENDS_OF_RESIDUALS = [f"hc_head.{part}.weight" for part in ("fn", "base", "scale")]
"""Tensors that read several residuals after the last layer, as GGUF files call them."""

_MIDDLE = "midlayer."
"""What SpecForge's files call the layer."""


class OwnHeadFiles:
    """The head that a checkpoint has of its own (MTP), layer by layer."""

    def __init__(self, files: WeightFiles, served: ModelConfig) -> None:
        """Reads headers only. Raises StartupError if the files have no head."""
        family = served_family(served.architecture)
        self._quantised = files.quantised is not None
        self._of_gguf = files.format == "gguf"
        if self._of_gguf:
            # llama.cpp's converter gives all of them the names of DeepSeek's.
            self.layout, self._names = LAYER_BEHIND_THE_LAST, family.gguf_names
            self._found = named_tensors(files.files)
        else:
            self.layout, self._names = family.own_head, family.hub_names
            self._found = safetensors_tensors(files.files, with_head_from_hub, files.quantised)
        self._served = served
        join = self.layout.join(served.num_layers)
        if f"{join}.weight" not in self._found:
            join = to_gguf(f"{join}.weight") if self._of_gguf else join
            raise StartupError(
                f"speculative_config: method mtp needs a head of the checkpoint's own, and it has"
                f" no {join}; method suffix is allowed with every model"
            )

    @property
    def layers(self) -> int:
        """How many layers the head has."""
        count = 1
        while self._has(count):
            count += 1
        return count

    def _has(self, draft: int) -> bool:
        begins = self.layout.begins(self._served.num_layers, draft)
        return any(name.startswith(begins) for name in self._found)

    def _ends(self) -> dict[str, StoredTensor]:
        """The served model's embedding, output head and last norm by our names, where its files
        call them otherwise."""
        named = ((f"{a}.weight", f"{b}.weight") for a, b in self._names.modules.items())
        ends = (EMBEDDING, HEAD, NORM)
        return {b: self._found[a] for a, b in named if b in ends and a in self._found}

    def _of_layer(self, draft: int) -> dict[str, StoredTensor]:
        """The tensors of a layer, by our names but for those that the family names."""
        layers, found = self._served.num_layers, self._found.items()
        named = ((self.layout.our_name(name, layers, draft), stored) for name, stored in found)
        return {ours: stored for ours, stored in named if ours is not None}

    def weights(
        self,
        draft: int,
        config: HeadConfig,
        dtype: torch.dtype,
        device: torch.device | None = None,
        *,
        keep_quantised: bool = False,
    ) -> Weights:
        """Opens a layer. With `keep_quantised`, matrices of quantised types are not unpacked."""
        served, found = self._served, self._found
        own = self._of_layer(draft)
        if self._of_gguf and draft:
            # What all layers have in common is stored with the first of them.
            common = served_family(served.architecture).own_head.common
            own = {n: each for n, each in self._of_layer(0).items() if n in common} | own
        head = EMBEDDING if served.tie_word_embeddings else HEAD
        shared = {EMBEDDING: EMBEDDING, HEAD: head}
        if config.normed_input:
            shared[SERVED_NORM] = NORM
        if config.hyper_connections is not None:
            # llama.cpp takes the model's where its converter has written none of the head's.
            shared |= {name: name for name in (NORM, *_ENDS_OF_RESIDUALS)} if self._of_gguf else {}
            cut_join(own)
        _share(own, self._ends() | found, shared)
        names = replace(self._names, layers_for_drafts=False)
        quantised = self._quantised or any(each.format in LAYOUTS for each in own.values())
        kind = QuantisedWeights if keep_quantised and quantised else Weights
        named = gguf_by_our_names if self._of_gguf else by_our_names
        tensors = named(own, names, config)
        multiply_rows(tensors, config)
        fill_values(tensors, config)
        return kind(tensors, dtype, device).calling(partial(self._file_name, draft, names))

    def _file_name(self, draft: int, names: TensorNames, name: str) -> str:
        """The file's name of a tensor that a layer lacks, by ours."""
        layers = self._served.num_layers
        found = self.layout.file_name(in_file(name, names), layers, draft)
        if self._of_gguf:
            return to_gguf(found)
        begins = self.layout.begins(layers, draft)
        own = ((each, self._found[each].name) for each in self._found if each.startswith(begins))
        fronts = (theirs.removesuffix(ours) for ours, theirs in own if theirs.endswith(ours))
        return next(fronts, "") + found


AnyMade = TypeVar("AnyMade")


class SharedEnds(Generic[AnyMade]):
    """What was made of embeddings and output heads, which the layers of a head mostly have in
    common: of each tensor once."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], tuple[StoredTensor | None, AnyMade]] = {}

    def get(self, weights: Weights, name: str, make: Callable[[], AnyMade]) -> AnyMade:
        """Returns what `make` makes of this tensor, by our name; made once and shared."""
        stored = weights.tensors.get(name)
        key = name, id(stored)  # which stays the tensor's own while it is held here
        if key in self._made:
            weights.ignore(name)
        else:
            self._made[key] = stored, make()
        return self._made[key][1]


def eagle3_weights(
    files: WeightFiles,
    served: tuple[WeightFiles, ModelConfig],
    config: HeadConfig,
    dtype: torch.dtype,
    device: torch.device | None = None,
    *,
    keep_quantised: bool = False,
) -> Weights:
    """Opens a head's own files. What they lack is the served model's embedding. All of it becomes
    `dtype`, with `keep_quantised` too."""
    found = safetensors_tensors(files.files, quantised=files.quantised)
    own = {_of_eagle3(name): stored for name, stored in found.items() if name != "t2d"}
    if EMBEDDING not in own:
        others, model = served
        whole = open_weights(others, model, dtype)
        own[EMBEDDING] = whole.stored(EMBEDDING, (model.vocab_size, model.hidden_size))
    tensors = by_our_names(own, TensorNames(), config)
    return Weights(tensors, dtype, device).calling(partial(_eagle3_name, found))


def assistant_weights(files: WeightFiles, config: HeadConfig, dtype: torch.dtype) -> Weights:
    """Opens an assistant's own files: `pre_projection` in front of its layers, `post_projection`
    after their norm, and an output head that is its embedding."""
    family = served_family(config.architecture)
    if files.format == "gguf":
        # What joins both models stands in no layer.
        stored = named_tensors(files.files).items()
        named = {name.removeprefix("nextn."): each for name, each in stored}
        tensors = gguf_by_our_names(named, family.gguf_names, config)
    else:
        found = safetensors_tensors(files.files, quantised=files.quantised)
        tensors = by_our_names(found, family.hub_names, config)
    weights = Weights(tensors, dtype)
    weights.ignore(HEAD)
    return weights


def drafted_ids(weights: Weights, config: HeadConfig) -> torch.Tensor | None:
    """Takes the served model's ids of all of a head's own, [vocab] int64; None: they are the same.
    Raises UnsupportedModel."""
    if not weights.has(IDS):
        if config.vocab_size != config.served_vocab:
            raise UnsupportedModel(
                f"the head has {config.vocab_size} of {config.served_vocab} ids, and no tensor d2t,"
                " which says which"
            )
        return None
    stored = weights.of_any_type(IDS, (config.vocab_size,))
    if stored.format != "I64":
        raise UnsupportedModel(f"tensor {stored.name} is {stored.format}; I64 is needed")
    differences = np.frombuffer(stored.data.tobytes(), dtype="<i8")
    ids = differences + np.arange(config.vocab_size)
    if ids.min() < 0 or ids.max() >= config.served_vocab or len(np.unique(ids)) < len(ids):
        raise UnsupportedModel(
            f"tensor {stored.name} names ids from {ids.min()} to {ids.max()}; each is allowed once,"
            f" below {config.served_vocab}"
        )
    return torch.from_numpy(ids.copy())


def _eagle3_name(found: Mapping[str, StoredTensor], name: str) -> str:
    """The file's name of a tensor that a head lacks, by ours."""
    if name == IDS:
        return "d2t"
    if any(each.startswith(_MIDDLE) for each in found):
        return name.replace("layers.0.", _MIDDLE)
    return decoder_name(name, found, TensorNames())


def _of_eagle3(name: str) -> str:
    if name == "d2t":
        return IDS
    return f"layers.0.{name.removeprefix(_MIDDLE)}" if name.startswith(_MIDDLE) else name


def cut_join(own: dict[str, StoredTensor]) -> None:
    """Replaces a product that joins embedding and hidden state by its halves. Raises
    UnsupportedModel for one in whose middle a block of a quantised type lies."""
    both = own.pop(f"{JOIN}.weight", None)
    if both is None:
        return
    stored = FORMATS.get(both.format)
    outputs, inputs = both.shape if len(both.shape) == 2 else (0, 1)
    if stored is None or not outputs or inputs % (2 * stored.elements):
        raise UnsupportedModel(
            f"tensor {both.name} is {both.format} of shape {both.shape}, which can't be cut in two"
        )
    by_row = both.content.reshape(outputs, 2, -1)
    for half, name in enumerate((OF_EMBEDDING, OF_HIDDEN)):
        data = np.ascontiguousarray(by_row[:, half]).reshape(-1)
        shape = (outputs, inputs // 2)
        own[f"{name}.weight"] = replace(both, shape=shape, data=data, made=None)


def _share(
    own: dict[str, StoredTensor], found: Mapping[str, StoredTensor], names: Mapping[str, str]
) -> None:
    """Adds what the head lacks and the served model has."""
    for name, theirs in names.items():
        if name not in own and theirs in found:
            own[name] = found[theirs]
