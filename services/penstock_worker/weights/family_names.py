"""The tensors of a family's files by our names: renamed, cut out of fused ones, reordered."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from penstock.errors import UnsupportedModel
from penstock.families.tensor_names import TensorNames
from penstock.model.attention_spec import LatentSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock_worker.weights.alternating import cut_rows, separated
from penstock_worker.weights.factors import with_unit_rows
from penstock_worker.weights.names import INDEX_KEY, INDEX_KEY_NORM, INDEX_QUERY
from penstock_worker.weights.rows_by_head import of_kv_heads, things_apart
from penstock_worker.weights.stand_ins import add_unit_norms, add_units, add_zero_biases
from penstock_worker.weights.stored import StoredTensor

_NAME = re.compile(
    r"(?:layers\.(?P<layer>\d+)\.)?(?P<module>.+?)(?P<kind>\.weight|\.bias)?", re.DOTALL
)
CORRECTION = ".router.correction"
LOGARITHMS = ".recurrent.A_log"
_EXPERT = re.compile(r"(?<=experts\.)\d+(?=\.)")


class _Name(NamedTuple):
    """The name of a tensor, in parts."""

    layer: int | None
    module: str
    """The module within the layer; `*` stands for an expert's number."""
    expert: str
    """The expert's number; empty if there is none."""
    kind: str
    """The tensor's kind: `.weight`, `.bias` or nothing."""

    def of(self, module: str, expert: str) -> str:
        """The name of another module's tensor in the same layer."""
        begin = "" if self.layer is None else f"layers.{self.layer}."
        return f"{begin}{module.replace('*', expert)}{self.kind}"


def _parsed(name: str) -> _Name:
    match = _NAME.fullmatch(name)
    if match is None:
        return _Name(None, name, "", "")
    module, layer = match["module"], match["layer"]
    expert = _EXPERT.search(module)
    return _Name(
        None if layer is None else int(layer),
        module if expert is None else _EXPERT.sub("*", module, count=1),
        "" if expert is None else expert[0],
        match["kind"] or "",
    )


def by_our_names(
    tensors: dict[str, StoredTensor], names: TensorNames, config: ModelConfig
) -> dict[str, StoredTensor]:
    """Maps tensors by the names that the format's reader gave them to ours."""
    found: dict[str, StoredTensor] = {}
    if names.alternating:
        tensors = separated(tensors, names.alternating)
    if names.rows_of_experts:
        tensors = cut_rows(tensors, names.rows_of_experts, names.rows_turned, config)
    if names.turned:
        turned = {
            name: stored
            for name, stored in tensors.items()
            if _turned(_parsed(name), stored, names, config)
        }
        tensors = tensors | separated(turned, names.stacked, alternate=False)
        tensors = {name: stored for name, stored in tensors.items() if name not in turned}
    for name, stored in tensors.items():
        parsed = _parsed(name)
        if names.layers_for_drafts and (parsed.layer or 0) >= config.num_layers:
            continue
        for ours, part in _parts(parsed, stored, names, config):
            if ours.endswith(LOGARITHMS):  # of one dimension or two, in some files a row
                part = replace(part, shape=(math.prod(part.shape),))
            elif names.correction_row and ours.endswith(CORRECTION):
                part = replace(part, shape=_unwrapped(part.shape))
            if ours in found:
                raise UnsupportedModel(f"the checkpoint has the tensor {ours} twice")
            found[ours] = part
    add_zero_biases(found, names.zero_biases)
    if names.unit_norms:
        add_unit_norms(found, config)
    if names.unit_norms == "all":
        add_units(found, config)
    for name in found.keys() & {f"{module}.weight" for module in names.unit_rows}:
        found[name] = with_unit_rows(found[name])
    return found


def _unwrapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a vector around which files have dimensions of one element; else `shape`."""
    return tuple(size for size in shape if size != 1) or (1,)


def in_file(name: str, names: TensorNames) -> str:
    """Returns the name that by_our_names finds a tensor of ours by."""
    parsed = _parsed(name)
    for theirs, ours in names.modules.items():
        if ours == f"{parsed.module}{parsed.kind}":
            return parsed._replace(kind="").of(theirs, parsed.expert)
        if ours == parsed.module:
            return parsed.of(theirs, parsed.expert)
    for theirs, (ours,) in names.rows_of_experts.items():
        if parsed.module == ours:
            return parsed._replace(kind="").of(theirs, parsed.expert)
    for table in (names.stacked, names.fused, names.by_kv_head):
        for theirs, several in table.items():
            if parsed.module in several:
                return parsed.of(theirs, parsed.expert)
    return name


def _parts(
    name: _Name, stored: StoredTensor, names: TensorNames, config: ModelConfig
) -> Iterator[tuple[str, StoredTensor]]:
    if f"{name.module}{name.kind}" in names.modules:
        name = name._replace(module=f"{name.module}{name.kind}", kind="")
    module, layer = name.module, _layer(name, config)
    if layer.recurrent is not None and module in names.in_recurrent:
        yield name.of(names.in_recurrent[module], ""), stored
        return
    if module in names.by_kv_head:
        for ours, piece in of_kv_heads(stored, names.by_kv_head[module], config):
            yield name.of(ours, ""), _ordered(piece, ours, names, config, layer)
        return
    if module in names.stacked:
        matrices = [(str(expert), each) for expert, each in enumerate(_matrices(stored))]
        modules = names.stacked[module]
        name = name._replace(kind=name.kind or ".weight")  # a parameter of its own
    else:
        matrices = [(name.expert, stored)]
        modules = names.fused.get(module, (names.modules.get(module, module),))
        if module in modules[1:] and stored.shape[:1] == (_rows(module, config, layer),):
            modules = (module,)  # In this file, the others lie by themselves.
    if layer.halves == "feed_forward" and modules == ("post_attention_layernorm",):
        modules = ("input_layernorm",)  # the one norm of such a layer
    if names.shared_alone and layer.feed_forward.experts is None:
        modules = tuple(each.replace("mlp.shared_expert.", "mlp.") for each in modules)
    for expert, matrix in matrices:
        rows = [_rows(each, config, layer) for each in modules] if modules[1:] else []
        for each, piece in zip(modules, _cut(matrix, rows), strict=True):
            if each in names.by_head:
                piece = things_apart(piece, each, config, layer)
            yield name.of(each, expert), _ordered(piece, each, names, config, layer)


def _turned(name: _Name, stored: StoredTensor, names: TensorNames, config: ModelConfig) -> bool:
    """Whether a stack's matrices are transposed in the file."""
    modules = names.stacked.get(name.module, ())
    if not modules or len(stored.shape) != 3:
        return False
    if names.turned == "always":
        return True
    layer = _layer(name, config)
    return stored.shape[1] != sum(_rows(each, config, layer) for each in modules)


def _layer(name: _Name, config: ModelConfig) -> LayerSpec:
    """Returns the layer of a tensor; the last one for a layer that the model doesn't have, whose
    tensors are refused later."""
    return config.layer(min(name.layer or 0, config.num_layers - 1))


def _rows(module: str, config: ModelConfig, layer: LayerSpec) -> int:
    """Outputs of a projection that is fused with others."""
    experts = layer.feed_forward.experts
    inner = config.intermediate_size
    if experts is not None and ".experts." in module:
        inner = experts.inner
    if experts is not None and ".shared_expert." in module:
        inner = experts.shared_inner
    sizes = {
        "q_proj": config.num_heads * config.head_dim,
        "k_proj": config.num_kv_heads * config.head_dim,
        "v_proj": config.num_kv_heads * config.head_dim,
        "gate_proj": inner,
        "up_proj": inner,
        "down_proj": config.hidden_size,
    }
    return sizes[module.rpartition(".")[2]]


def _matrices(stored: StoredTensor) -> list[StoredTensor]:
    """Cuts [experts, rows, columns] into one matrix for each expert, or [experts, rows] into
    biases."""
    if len(stored.shape) not in (2, 3):
        raise UnsupportedModel(
            f"tensor {stored.name} has shape {stored.shape}; one matrix for each expert is expected"
        )
    by_expert = stored.data.reshape(stored.shape[0], -1)
    factors = [stored.factors] * len(by_expert)
    if len(stored.factors) == len(by_expert):
        factors = [(each,) for each in stored.factors]
    return [
        replace(stored, shape=stored.shape[1:], data=data, factors=own)
        for data, own in zip(by_expert, factors, strict=True)
    ]


def _cut(stored: StoredTensor, rows: list[int]) -> list[StoredTensor]:
    """Cuts a tensor into pieces of so many rows, which lie in the file one after another. No
    numbers: it stays whole."""
    if not rows:
        return [stored]
    if not stored.shape or stored.shape[0] != sum(rows):
        raise UnsupportedModel(
            f"tensor {stored.name} has shape {stored.shape}; {' + '.join(map(str, rows))} rows "
            "are expected"
        )
    ends = pairwise([0, *accumulate(rows)])
    return [stored.row_range(range(low, high)) for low, high in ends]


def _ordered(
    stored: StoredTensor,
    module: str,
    names: TensorNames,
    config: ModelConfig,
    layer: LayerSpec,
) -> StoredTensor:
    sections = any(rope.sections for rope in config.ropes)
    if names.halves_swapped:
        heads = _rotating_heads(module, config, layer)
        return (
            stored if heads is None else replace(stored, rearrange=partial(_swapped, heads=heads))
        )
    if not names.pairs_adjacent or (names.pairs_adjacent == "without sections" and sections):
        return stored
    if config.latent is not None:
        return _latent_ordered(stored, module, names, config, config.latent)
    heads = _rotating_heads(module, config, layer)
    if heads is None:
        return stored
    dims = {rope.dims for rope in config.ropes}
    if names.pairs_adjacent == "whole heads":
        if not dims:  # the order of a head's numbers changes nothing
            return stored
        dims = {config.head_dim}
    if len(dims) != 1:
        raise UnsupportedModel("rotary embeddings of different sizes with adjacent pairs")
    return replace(stored, rearrange=partial(_halves_apart, heads=heads, dims=dims.pop()))


def _latent_ordered(
    stored: StoredTensor, module: str, names: TensorNames, config: ModelConfig, latent: LatentSpec
) -> StoredTensor:
    """The last numbers of a head rotate, and those after the latent; of an index the first."""
    part = module.rpartition(".")[2]
    if config.index is not None and part in (INDEX_QUERY, INDEX_KEY, INDEX_KEY_NORM):
        if not names.index_pairs_adjacent:
            return stored
        own = config.index.heads if part == INDEX_QUERY else 1
        return replace(stored, rearrange=partial(_halves_apart, heads=own, dims=latent.rotating))
    heads = {"q_proj": config.num_heads, "kv_a_proj": 1}.get(part)
    if heads is None:
        return stored
    return replace(stored, rearrange=partial(_last_halves_apart, heads=heads, dims=latent.rotating))


def _rotating_heads(module: str, config: ModelConfig, layer: LayerSpec) -> int | None:
    """How many heads the rows of a tensor belong to, if they rotate."""
    own = layer.attention.kv_heads
    kv_heads = config.num_kv_heads if own is None else own.count
    match module.rpartition(".")[2]:
        case "q_proj":
            return config.num_heads
        case "k_proj":
            return kv_heads
        case "q_norm":
            return config.num_heads if config.layers[0].attention.norm == "whole" else 1
        case "k_norm":
            return kv_heads if config.layers[0].attention.norm == "whole" else 1
    return None


def _halves_apart(rows: np.ndarray, heads: int, dims: int) -> np.ndarray:
    """Reorders [heads * head_dim, ...] from adjacent pairs to pairs that are half of the rotating
    `dims` numbers apart. What lies after these stays."""
    by_head = rows.reshape(heads, rows.shape[0] // heads, *rows.shape[1:])
    turning = _pairs_apart(by_head[:, :dims])
    return np.concatenate((turning, by_head[:, dims:]), 1).reshape(rows.shape)


def _pairs_apart(turning: np.ndarray) -> np.ndarray:
    """[heads, dims, ...]: first each pair's first row, then each pair's second one."""
    return np.concatenate((turning[:, ::2], turning[:, 1::2]), 1)


def _swapped(rows: np.ndarray, heads: int) -> np.ndarray:
    """Puts the second half of each head's rows in front of the first; [heads * head_dim, ...]."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves[:, ::-1].reshape(rows.shape)


def _last_halves_apart(rows: np.ndarray, heads: int, dims: int) -> np.ndarray:
    """Reorders as _halves_apart does, for heads whose last `dims` numbers rotate."""
    by_head = rows.reshape(heads, rows.shape[0] // heads, *rows.shape[1:])
    fixed, turning = by_head[:, :-dims], by_head[:, -dims:]
    return np.concatenate((fixed, _pairs_apart(turning)), 1).reshape(rows.shape)
