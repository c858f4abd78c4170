"""A model's forward pass for trainers: what is sampled and what is trained have the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, pairwise

import msgspec
import numpy as np
import torch
from torch import Tensor

from penstock.prepare import load_manifest, prepare
from penstock_kernels.reference.tiling import padded_rows
from penstock_training.gradients import GradientAttention, GradientOps, capped, scores
from penstock_worker import sampler
from penstock_worker.attention.interface import BatchLayout, CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.attention.whole_sequence import WHOLE_SEQUENCE_MECHANISMS
from penstock_worker.dtype import cache_dtype, compute_dtype
from penstock_worker.forward.interface import require
from penstock_worker.models.decoder import HEAD, DecoderModel
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

TRAINABLE = WHOLE_SEQUENCE_MECHANISMS
"""What has gradients beyond Llama's layers. Models that need more are refused."""

_BLOCK = 16
"""Tokens of a KV block; results don't depend on it."""
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Dtypes of tensors as a file has them. Others are quantised, and become float32."""


class TrainerForward:
    """Log-probabilities of a sequence's tokens as a server with `--attention-backend reference`
    gives them, bit for bit, with gradients for the weights.

    The bits are those of a server on a processor of the same kind, with the same version of torch
    and the same settings.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        max_model_len: int | None = None,
    ) -> None:
        """The arguments are the server's settings. Raises what `prepare` raises, StartupError for
        another dtype, and Unable for a model that has no gradients here."""
        prepared = load_manifest(prepare(model))
        config = prepared.decoder
        require(TRAINABLE, config)
        self._cap = config.logits_soft_cap  # the last that happens to logits
        self._config = msgspec.structs.replace(config, logits_soft_cap=None)
        self._dtype = compute_dtype(dtype, prepared.weights)
        cache = cache_dtype(kv_cache_dtype, self._dtype)
        self._shape = CacheShape.of(config, _BLOCK, cache)
        self._longest = max_model_len or config.max_position
        stored = dict(open_weights(prepared.weights, config, self._dtype).tensors)
        if config.tie_word_embeddings:
            stored.pop(HEAD, None)
        self._stored = stored
        self._sampler = sampler.choose(1)

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the checkpoint's tensors by its own names, each a leaf that requires a
        gradient. Quantised ones are unpacked to float32."""
        found = {}
        for name, pieces in self._by_file():
            own = torch.cat([_as_in_file(self._stored[each]) for each in pieces])
            found[name] = own.requires_grad_()
        return found

    def logprobs(
        self, token_ids: Sequence[int], parameters: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """The log-probability of each token but the first, given those before it: [tokens - 1]
        float32.

        parameters: those that take the place of the checkpoint's, by its own names and in its
        shapes, such as a transformers model's `named_parameters()`; another dtype is converted.

        Computes forward on one thread, as the server does. Raises ValueError for fewer than 2
        tokens, more than max_model_len, ids outside of the vocabulary, unknown names, other shapes
        or devices, and logits that aren't finite.
        """
        ids = [int(each) for each in token_ids]
        self._check(ids)
        given = self._pieces(parameters or {})
        with _one_thread():
            weights = _GivenOrStored(self._stored, self._dtype, given)
            model = DecoderModel(self._config, weights, self._longest, ops=GradientOps())
            return scores(self._logits(model, ids[:-1]), ids[1:], self._sampler)

    def _logits(self, model: DecoderModel, ids: list[int]) -> Tensor:
        count = len(ids)
        padding = (0, padded_rows(count) - count)
        blocks = -(-count // _BLOCK)
        layout = BatchLayout([np.arange(blocks)], np.array([0]), np.array([count]))
        step = ReferenceAttention(self._shape, blocks).plan(layout)
        hidden = model.hidden(
            torch.from_numpy(np.pad(np.array(ids), padding)),
            torch.from_numpy(np.pad(layout.positions, padding)),
            GradientAttention(step, count),
            lambda: None,
        )
        logits = model.logits(hidden[:count])
        return logits if self._cap is None else capped(logits, self._cap)

    def _check(self, ids: list[int]) -> None:
        if not 2 <= len(ids) <= self._longest:
            raise ValueError(f"token_ids has {len(ids)} tokens; allowed are 2 to {self._longest}")
        vocab = self._config.vocab_size
        for token in ids:
            if not 0 <= token < vocab:
                raise ValueError(f"token_ids has {token}; allowed are 0 to {vocab - 1}")

    def _by_file(self) -> Iterator[tuple[str, list[str]]]:
        """Each tensor of the files, with our names of what it consists of, in its order."""
        by_name = sorted(self._stored, key=lambda ours: self._stored[ours].name)
        for name, pieces in groupby(by_name, lambda ours: self._stored[ours].name):
            yield name, list(pieces)

    def _pieces(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters by our names."""
        left = dict(parameters)
        found: dict[str, Tensor] = {}
        for name, pieces in self._by_file():
            tensor = left.pop(name, None)
            if tensor is None:
                continue
            shapes = [self._stored[each].shape for each in pieces]
            whole = (sum(shape[0] for shape in shapes), *shapes[0][1:])
            if tuple(tensor.shape) != whole:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}; the model needs {whole}")
            if tensor.device.type != "cpu":
                raise ValueError(f"{name} is on {tensor.device}; allowed is cpu")
            ends = pairwise(np.cumsum([0, *(shape[0] for shape in shapes)]).tolist())
            found |= {
                ours: tensor[low:high] for ours, (low, high) in zip(pieces, ends, strict=True)
            }
        if left:
            raise ValueError(f"the checkpoint has no tensors called {', '.join(sorted(left))}")
        return found


class _GivenOrStored(Weights):
    """Tensors that were given, and those of the files for the rest."""

    def __init__(
        self, stored: dict[str, StoredTensor], dtype: torch.dtype, given: Mapping[str, Tensor]
    ) -> None:
        super().__init__(stored, dtype)
        self._given = given

    def take_stacked(
        self, parts: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype | None = None
    ) -> Tensor:
        """Always a new tensor, whose alignment is torch's."""
        wanted = dtype or self.dtype
        return torch.cat([self._piece(name, tuple(shape)).to(wanted) for name, shape in parts])

    def _piece(self, name: str, shape: tuple[int, ...]) -> Tensor:
        stored, given = self.stored(name, shape), self._given.get(name)
        found = _as_in_file(stored) if given is None else given
        return found if stored.rearrange is None else found[torch.from_numpy(stored.sources())]


def _as_in_file(stored: StoredTensor) -> Tensor:
    """A tensor's values in the order of the file's rows."""
    out = torch.empty(stored.shape, dtype=_DTYPES.get(stored.format, torch.float32))
    in_order = stored if stored.rearrange is None else stored.own_rows(range(stored.shape[0]))[0]
    in_order.read_into(out)
    return out


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
