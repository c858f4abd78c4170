"""Loads a head that drafts beside the model that is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

import msgspec
import numpy as np
import torch
from torch import Tensor

from penstock import logs
from penstock.errors import StartupError
from penstock.kv_layout import state_of
from penstock.model_config import HeadConfig, ModelConfig, PreparedModel, WeightFiles
from penstock.prepare import load_manifest
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.heads import HeadForward, HeadRecipe
from penstock_worker.forward.interface import Batch, Forward, Recipe, Unable
from penstock_worker.models.taps import Taps
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.sampler import Sampler
from penstock_worker.speculation.draft_head import DraftHead
from penstock_worker.speculation.draft_rows import DraftRows
from penstock_worker.speculation.draft_sampling import DraftLimits
from penstock_worker.speculation.hidden_rows import HiddenRows
from penstock_worker.weights.heads import eagle3_weights, mtp_weights
from penstock_worker.weights.weights import Weights

log = logs.get(__name__)


@dataclass(frozen=True)
class BesideHead:
    """Adapts the served model, which computes, to the interface `Forward` for both."""

    served: Forward
    head: HeadForward
    taps: Taps
    hidden: HiddenRows
    together: bool
    """Whether other ranks draft the same."""

    @property
    def layers_done(self) -> int:
        return self.served.layers_done + self.head.layers_done

    def cancel(self) -> None:
        self.served.cancel()
        self.head.cancel()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        logits = self.served.logits(batch, rows)
        self._note(batch)
        return logits

    def kv_blocks(self) -> list[np.ndarray]:
        return [*self.served.kv_blocks(), *self.head.kv_blocks()]

    def _note(self, batch: Batch) -> None:
        """A failure costs drafts, and the step nothing."""
        try:
            self.hidden.note(batch, self.head.hidden(self.taps.taken(len(batch.tokens))))
        except Exception:
            if self.together:
                raise  # The other ranks have theirs.
            log.error("hidden states can't be read", exception=True, slots=len(batch.slots))


class HeadLoader:
    """Loads the head that `setup.speculation` asks for, with as many blocks as the served model."""

    def __init__(
        self, prepared: PreparedModel, served: Recipe, setup: Setup, threads: int, ranks: Ranks
    ) -> None:
        """`prepared`, `served`: of the model that is served. Raises StartupError where the head
        can't draft for it."""
        if setup.speculation is None:
            raise ValueError("the setup asks for no head")
        self._method = setup.speculation.method
        self._drafts = setup.speculation.num_speculative_tokens
        self._taps = _checked(served, prepared, setup, ranks)
        config, files, opening = _described(prepared, setup)
        own = msgspec.structs.replace(
            setup,
            dtype=setup.dtype if self._method == "mtp" else "auto",
            kv_cache_dtype="auto",
            calculate_kv_scales=False,
            quantization=setup.quantization if self._method == "mtp" else "none",
            max_loras=0,
            max_lora_rank=0,
            lora_whole_matrices=False,
        )
        try:
            recipe = _backend(served.backend).head_recipe(config, files, opening, own, threads)
        except Unable as error:
            raise StartupError(f"speculative_config: the head can't be computed: {error}") from None
        self._recipe: HeadRecipe = recipe
        self._ends = frozenset(prepared.generation.eos_token_ids)
        self._vocab = prepared.decoder.vocab_size
        self._positions = min(setup.max_model_len, config.max_position)
        self._setup = setup
        self._served = served
        self._together = ranks.place.ranks > 1
        self._loaded: tuple[HeadForward, HiddenRows, int] | None = None
        self.served_parts = 0

    @property
    def told(self) -> dict[str, str]:
        """For the log."""
        return {"draft": self._method, "draft_dtype": self._recipe.dtype}

    def recipe(self) -> Recipe:
        """Returns the recipe of both."""
        served, each = self._served, self._recipe.block_bytes
        return replace(served, block_bytes=served.block_bytes + each, build=self._build)

    def _build(self) -> Callable[[int], Forward]:
        served, head = self._served.build(), self._recipe.build()

        def with_blocks(blocks: int) -> Forward:
            forward = head(blocks)
            hidden = HiddenRows(forward.like)
            self._loaded = forward, hidden, blocks
            both = BesideHead(served(blocks), forward, self._taps, hidden, self._together)
            self.served_parts = len(both.served.kv_blocks())
            return both

        return with_blocks

    def proposer(self, slots: Slots, sampler: Sampler, host_blocks: int) -> DraftHead:
        """Returns the proposer, once the recipe's forward pass has been made. `sampler`: that of
        the served model."""
        if self._loaded is None:
            raise RuntimeError("the head has not been loaded")
        forward, hidden, blocks = self._loaded
        limits = DraftLimits(
            self._drafts,
            self._positions,
            self._vocab,
            self._ends,
            self._setup.max_num_batched_tokens,
        )
        rows = DraftRows(blocks, host_blocks, self._setup.block_size)
        return DraftHead(forward, hidden, sampler, slots, rows, limits)


def _backend(name: str) -> ModuleType:
    """Imported when it is needed: each has libraries of its own."""
    if name.split()[0] == "cpu":
        from penstock_worker.forward.cpu import heads

        return heads
    from penstock_worker.forward import reference_heads

    return reference_heads


def _checked(served: Recipe, prepared: PreparedModel, setup: Setup, ranks: Ranks) -> Taps:
    """Raises StartupError where the served model can't have a head."""
    asked = "speculative_config: method " + (
        "" if setup.speculation is None else setup.speculation.method
    )
    if served.taps is None:
        raise StartupError(
            f"{asked} is served by the backends cpu and reference; the attention backend is"
            f" {served.backend}, where method suffix or ngram is allowed"
        )
    if ranks.place.pipeline > 1:
        raise StartupError(
            f"{asked} is not served over pipeline stages; pipeline_parallel_size is"
            f" {ranks.place.pipeline}, and has to be 1"
        )
    config = prepared.decoder
    if served.kv_groups[0].forgets or state_of(served.kv_groups) is not None:
        raise StartupError(
            f"{asked} is not served for a model with recurrent layers, or without a layer that sees"
            f" the whole context, as {prepared.name} is; with the latter, suffix and ngram are"
        )
    if config.encoder_rows:
        raise StartupError(f"{asked} is not served for {prepared.name}, which has an encoder")
    return served.taps


def _described(
    prepared: PreparedModel, setup: Setup
) -> tuple[HeadConfig, WeightFiles, Callable[[torch.dtype], Weights]]:
    """Returns what a head is, its files, and what opens them. Raises StartupError, or ModelNotFound
    or UnsupportedModel."""
    said, served = setup.speculation, prepared.decoder
    if said is not None and said.method == "mtp":
        config = mtp_head(served)
        files = prepared.weights
        return config, files, lambda dtype: mtp_weights(files, served, config, dtype)
    folder = "" if said is None else said.model
    head = load_manifest(folder)
    if not isinstance(head.config, HeadConfig):
        raise StartupError(
            f"speculative_config: {head.name} is a model, and no head of EAGLE-3; with method"
            " draft_model it may draft"
        )
    own = head.config
    _check_sizes(own, served, head.name, prepared.name)
    both = prepared.weights, served
    return own, head.weights, lambda dtype: eagle3_weights(head.weights, both, own, dtype)


def mtp_head(served: ModelConfig) -> HeadConfig:
    """Returns what the head of a model's own checkpoint is: one more layer like the last one
    (DeepSeek-AI, "DeepSeek-V3 technical report", 2024)."""
    fields = {name: getattr(served, name) for name in ModelConfig.__struct_fields__}
    fields |= {
        "num_layers": 1,
        "layers": (served.layer(served.num_layers - 1),),
        "tie_word_embeddings": False,
        "vision": None,
        "audio": None,
    }
    return HeadConfig(
        **fields,
        served_vocab=served.vocab_size,
        served_hidden=served.hidden_size,
        taps=(served.num_layers,),
    )


def _check_sizes(head: HeadConfig, served: ModelConfig, name: str, model: str) -> None:
    sizes = (head.served_vocab, head.served_hidden)
    wanted = (served.vocab_size, served.hidden_size)
    if sizes != wanted:
        raise StartupError(
            f"speculative_config: {name} drafts for a model of {sizes[0]} ids and hidden size"
            f" {sizes[1]}; {model} has {wanted[0]} and {wanted[1]}"
        )
