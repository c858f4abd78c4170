"""Loads a head that drafts for the served model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import msgspec
from msgspec.structs import replace as struct_replace

from penstock.errors import StartupError
from penstock.families.finding import served_family
from penstock.families.gemma4 import GEMMA4
from penstock.model.config import HeadConfig, ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock.model.prepared_model import PreparedModel, WeightFiles
from penstock.prepare import load_manifest
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.heads import DeviceHeadRecipe, HeadForward, HeadRecipe, OpenHead
from penstock_worker.forward.interface import (
    Batch,
    DeviceForward,
    DeviceRecipe,
    Forward,
    Recipe,
    Unable,
)
from penstock_worker.models.aux_hidden import AuxHidden
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.sampler.interface import QueuedSampler
from penstock_worker.speculation.beside import Beside, HeadLayers, HiddenNotes
from penstock_worker.speculation.draft_head import PENDING, DraftHead
from penstock_worker.speculation.drafter import DraftLimits, DraftRows
from penstock_worker.speculation.hidden_rows import HiddenRows
from penstock_worker.speculation.on_device import BuildWithHead, DeviceBeside, DeviceHeadLayers
from penstock_worker.weights.heads import OwnHeadFiles, SharedEnds, eagle3_weights


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
        self._aux_hidden = _checked(served, prepared, setup, ranks)
        described = _described(prepared, setup)
        own = msgspec.structs.replace(
            setup,
            dtype=setup.dtype if self._method == "mtp" else "auto",
            kv_cache_dtype="auto",
            calculate_kv_scales=False,
            quantization=setup.quantization if self._method == "mtp" else "none",
            max_loras=0,
            max_lora_rank=0,
            lora_whole_matrices=False,
            lora_experts=False,
        )
        config, files, backend = described.config, described.files, _backend(served.backend)
        self._chained = config.chained
        ends: SharedEnds[Any] = SharedEnds()
        try:
            self._recipes: list[HeadRecipe] = [
                backend.head_recipe(config, files, opening, own, threads, ends)
                for opening in described.layers
            ]
        except Unable as error:
            raise StartupError(f"speculative_config: the head can't be computed: {error}") from None
        self._ends = frozenset(prepared.generation.eos_token_ids)
        self._vocab = prepared.decoder.vocab_size
        self._positions = min(setup.max_model_len, config.max_position)
        self._setup = setup
        self._served = served
        self._together = ranks.place.ranks > 1
        self._loaded: tuple[Sequence[HeadForward], HiddenRows, int] | None = None
        self.served_parts = 0

    @property
    def told(self) -> dict[str, str]:
        """What the log says of the drafts."""
        layers = {"draft_layers": str(len(self._recipes))} if self._recipes[1:] else {}
        return {"draft": self._method, "draft_dtype": self._recipes[0].dtype, **layers}

    def recipe(self) -> Recipe:
        """Returns the recipe of both."""
        served, own = self._served, sum(each.block_bytes for each in self._recipes)
        return replace(served, block_bytes=served.block_bytes + own, build=self._build)

    def _build(self) -> Callable[[int], Forward]:
        served, recipes = self._served, self._recipes
        on_device = [each for each in recipes if isinstance(each, DeviceHeadRecipe)]
        if isinstance(served, DeviceRecipe) and on_device:
            return self._build_on_device(served, on_device)
        build, heads = served.build(), [each.build() for each in recipes]

        def with_blocks(blocks: int) -> Forward:
            layers = [head(blocks) for head in heads]
            both = Beside(build(blocks), HeadLayers(layers), note=self._notes(layers, blocks))
            self.served_parts = len(both.served.kv_blocks())
            return both

        return with_blocks

    def _build_on_device(
        self, served: DeviceRecipe, recipes: list[DeviceHeadRecipe]
    ) -> BuildWithHead:
        build, heads = served.build(), [each.build() for each in recipes]

        def with_blocks(blocks: int) -> DeviceForward:
            layers = [head(blocks) for head in heads]
            note, model = self._notes(layers, blocks), build(blocks)
            self.served_parts = len(model.blocks())
            return DeviceBeside(model, DeviceHeadLayers(layers), note=note, captured=(model,))

        most = self._setup.max_num_batched_tokens
        waiting = len(heads) * (most + PENDING * self._setup.max_num_seqs)
        return BuildWithHead(build, heads[0], self._aux_hidden, with_blocks, most, waiting)

    def _notes(self, layers: Sequence[HeadForward], blocks: int) -> Callable[[Batch], None]:
        hidden = HiddenRows(layers[0].like)
        self._loaded = layers, hidden, blocks
        return HiddenNotes(layers[0], self._aux_hidden, hidden, self._together).note

    def proposer(self, slots: Slots, sampler: QueuedSampler, host_blocks: int) -> DraftHead:
        """Returns the proposer, once the recipe's forward pass has been made. `sampler`: that of
        the served model."""
        if self._loaded is None:
            raise RuntimeError("the head has not been loaded")
        layers, hidden, blocks = self._loaded
        limits = DraftLimits(
            self._drafts,
            self._positions,
            self._vocab,
            self._ends,
            self._setup.max_num_batched_tokens,
        )
        rows = DraftRows(blocks, host_blocks, self._setup.block_size)
        return DraftHead(layers, hidden, sampler, slots, rows, limits, chained=self._chained)


def _backend(name: str) -> ModuleType:
    """Imported when it is needed: each has libraries of its own."""
    if name.split()[0] == "cpu":
        from penstock_worker.forward.cpu import heads

        return heads
    if name == "triton":
        from penstock_worker.forward import triton_heads

        return triton_heads
    from penstock_worker.forward import reference_heads

    return reference_heads


def _checked(served: Recipe, prepared: PreparedModel, setup: Setup, ranks: Ranks) -> AuxHidden:
    """Raises StartupError where the served model can't have a head."""
    asked = "speculative_config: method " + (
        "" if setup.speculation is None else setup.speculation.method
    )
    if served.aux_hidden is None:
        raise StartupError(
            f"{asked} is served by the backends cpu, reference and triton; the attention backend is"
            f" {served.backend}, where method suffix or ngram is allowed"
        )
    if ranks.place.pipeline > 1:
        raise StartupError(
            f"{asked} is not served over pipeline stages; pipeline_parallel_size is"
            f" {ranks.place.pipeline}, and has to be 1"
        )
    config = prepared.decoder
    if served.kv_groups[0].forgets:
        raise StartupError(
            f"{asked} is not served for a model without a layer that sees the whole context, as"
            f" {prepared.name} is; suffix and ngram are"
        )
    if config.encoder_rows:
        raise StartupError(f"{asked} is not served for {prepared.name}, which has an encoder")
    if config.pictures_apart:
        raise StartupError(
            f"{asked} is not served for {prepared.name}, whose pictures go through no layer; suffix"
            " and ngram are"
        )
    return served.aux_hidden


@dataclass(frozen=True)
class _Described:
    """What a head is."""

    config: HeadConfig
    """What each of its layers is."""
    files: WeightFiles
    layers: list[OpenHead]
    """Opens the weights of each layer."""


def _described(prepared: PreparedModel, setup: Setup) -> _Described:
    """Raises StartupError, or ModelNotFound or UnsupportedModel."""
    said, served = setup.speculation, prepared.decoder
    if said is not None and said.method == "mtp":
        if served.architecture == GEMMA4.name:
            raise StartupError(
                "speculative_config: what drafts for Gemma 4 with method mtp is an assistant, which"
                " `model` has to name; method suffix is allowed with every model"
            )
        files = OwnHeadFiles(prepared.weights, served)
        config = mtp_head(served, hidden_first=files.layout.hidden_first)
        # More drafts than tokens are asked for are never made.
        count = min(files.layers, said.num_speculative_tokens)
        opening = [partial(files.weights, draft, config) for draft in range(count)]
        return _Described(config, prepared.weights, [*opening])
    folder = "" if said is None else said.model
    head = load_manifest(folder)
    if not isinstance(head.config, HeadConfig) or head.config.borrows:
        what, method = ("a model", "draft_model")
        if isinstance(head.config, HeadConfig):
            what, method = ("an assistant", "mtp")
        raise StartupError(
            f"speculative_config: {head.name} is {what}, and no head of EAGLE-3; with method"
            f" {method} it may draft"
        )
    own = head.config
    _check_sizes(own, served, head.name, prepared.name)
    both = prepared.weights, served
    return _Described(own, head.weights, [partial(eagle3_weights, head.weights, both, own)])


def mtp_head(served: ModelConfig, *, hidden_first: bool = False) -> HeadConfig:
    """Returns what each layer of the head of a model's own checkpoint is: one like the last one
    that attends (DeepSeek-AI, "DeepSeek-V3 technical report", 2024), where the family doesn't say
    otherwise. `hidden_first`: of its files. Raises UnsupportedModel."""
    own = served_family(served.architecture).own_head
    layer = _last_that_attends(served) if own.spec is None else own.spec(served)
    fields = {name: getattr(served, name) for name in ModelConfig.__struct_fields__}
    fields |= {
        "num_layers": 1,
        "layers": (layer,),
        "tie_word_embeddings": False,
        "vision": None,
        "audio": None,
    }
    return HeadConfig(
        **fields,
        served_vocab=served.vocab_size,
        served_hidden=served.hidden_size,
        aux_layers=(served.num_layers,),
        normed_input=own.normed_input,
        normed_result=own.normed_result,
        hidden_first=hidden_first,
        chained=own.chained,
    )


def _last_that_attends(served: ModelConfig) -> LayerSpec:
    layers = [served.layer(number) for number in range(served.num_layers)]
    last = next(layer for layer in reversed(layers) if layer.attends)
    index = last.attention.index
    if index is None or not index.shared:
        return last
    # There is no layer before it whose choice it could read.
    own = struct_replace(index, shared=False)
    return struct_replace(last, attention=struct_replace(last.attention, index=own))


def _check_sizes(head: HeadConfig, served: ModelConfig, name: str, model: str) -> None:
    sizes = (head.served_vocab, head.served_hidden)
    wanted = (served.vocab_size, served.hidden_size)
    if sizes != wanted:
        raise StartupError(
            f"speculative_config: {name} drafts for a model of {sizes[0]} ids and hidden size"
            f" {sizes[1]}; {model} has {wanted[0]} and {wanted[1]}"
        )
