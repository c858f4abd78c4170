"""Our paged attention under the name by which transformers' code calls it.

A step's sequences come flattened as one, [1, rows], so transformers has no masks to make: who sees
what follows from the step's layout and from the layer's rule.  A rehearsal asks for the masks all
the same, to learn the rule of each layer from them.

Source of the interfaces: transformers' documentation, "Attention Interface".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from penstock.errors import UnsupportedModel
from penstock_worker.attention.interface import CacheShape, ScoreRule, StepAttention

IMPLEMENTATION = "penstock_paged"
"""The name that transformers knows it by."""

FAR = 1 << 18
"""A position that no window reaches back from to the first."""

_HARMLESS = frozenset(
    {
        "cache_position",
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
"""Arguments that models hand on to the attention, and that change nothing here."""


@dataclass
class LayerFacts:
    """What a rehearsal learns about a model's layers."""

    windows: dict[int, int | None] = field(default_factory=dict)
    """How many tokens a token sees, by the layer's number; None: all before it."""


@dataclass(frozen=True)
class PagedStep:
    """A forward pass: what attention through block tables needs of it."""

    attention: StepAttention
    shape: CacheShape
    facts: LayerFacts
    layer_done: Callable[[], None]
    rehearsal: bool = False
    """Whether the facts are still to be learnt."""


class _Current(threading.local):
    step: PagedStep | None = None


_current = _Current()


@contextmanager
def computing(step: PagedStep) -> Iterator[None]:
    """The step that attention in this thread belongs to."""
    _current.step = step
    try:
        yield
    finally:
        _current.step = None


def register() -> None:
    """Makes the attention known to transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _mask)


def _step() -> PagedStep:
    if _current.step is None:
        raise RuntimeError("attention outside of a step")
    return _current.step


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """`query` is [1, heads, rows, dim]; keys and values have KV heads. Returns [1, rows, heads,
    value dim]."""
    step, layer = _step(), int(module.layer_idx)
    if step.rehearsal:
        _check(module, layer, others)
        _learn(step, layer, query, key, value, attention_mask, sliding_window)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    window = step.facts.windows[layer]
    rule = ScoreRule(scale=scale, window=window, soft_cap=softcap, sinks=s_aux)
    dim = step.shape.head_dim
    with torch._C.DisableTorchFunction():  # The kernels' products are as they should be.
        rows = (_by_row(query, dim), _by_row(key, dim), _by_row(value, dim))
        mixed = step.attention.attend(layer, *rows, None, rule=rule)
    step.layer_done()
    return mixed[None, :, :, : value.shape[-1]], None


def _by_row(heads: Tensor, dim: int) -> Tensor:
    """[1, heads, rows, n] as [rows, heads, dim]. Zeros add nothing to a product."""
    rows = heads[0].transpose(0, 1)
    return pad(rows, (0, dim - rows.shape[-1])) if rows.shape[-1] < dim else rows.contiguous()


def _check(module: Any, layer: int, others: dict[str, Any]) -> None:
    if getattr(module, "is_causal", True) is False:
        raise UnsupportedModel(f"the attention of layer {layer} looks ahead, so it isn't a decoder")
    for name, given in others.items():
        if name not in _HARMLESS and given is not None and given is not False:
            raise UnsupportedModel(
                f"the attention of layer {layer} is given {name}, which is not known here"
            )


def _learn(
    step: PagedStep,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    window: int | None,
) -> None:
    shape = step.shape
    heads, kv_heads = query.shape[1], key.shape[1]
    dim = max(key.shape[-1], value.shape[-1])
    if (heads, kv_heads, dim) != (shape.num_heads, shape.num_kv_heads, shape.head_dim):
        raise UnsupportedModel(
            f"layer {layer} has {heads} query heads and {kv_heads} key/value heads of {dim}; "
            f"config.json says {shape.num_heads} and {shape.num_kv_heads} of {shape.head_dim}"
        )
    if layer >= shape.num_layers:
        raise UnsupportedModel(f"there is a layer {layer}; config.json says {shape.num_layers}")
    if layer in step.facts.windows:
        raise UnsupportedModel(f"layer {layer} has several attentions")
    if mask is not None:
        if mask.shape != (1, 1, 1, 1):
            raise UnsupportedModel(f"layer {layer} makes a mask of its own")
        seen = int(mask)
        window = None if seen == FAR else seen
    step.facts.windows[layer] = window


def _mask(*_: Any, mask_function: Callable[..., Any] | None = None, **__: Any) -> Tensor | None:
    """Returns no mask; in a rehearsal, the window that the model asks a mask for, [1, 1, 1, 1], or
    FAR for no window."""
    if not _step().rehearsal:
        return None
    if mask_function is None:
        raise UnsupportedModel("the model's code makes a mask of a kind that is not known here")
    return torch.tensor(_window_of(mask_function)).view(1, 1, 1, 1)


def _window_of(sees: Callable[..., Any]) -> int:
    """How many tokens the mask's last positions see. Raises UnsupportedModel unless each sees just
    those up to its own."""
    places = torch.arange(FAR)
    found = set()
    for position in (FAR - 1, FAR - 2, FAR * 2 // 3):
        zero = torch.tensor(0)
        seen = torch.as_tensor(sees(zero, zero, torch.tensor(position), places)).expand(FAR)
        count = int(seen.sum())
        expected = (places <= position) & (places > position - count)
        if not count or not torch.equal(seen, expected):
            raise UnsupportedModel("the model's code has a mask other than a sliding window's")
        found.add(FAR if count == position + 1 else count)
    if len(found) > 1:
        raise UnsupportedModel("the model's code has a mask that moves in chunks of positions")
    return found.pop()
