"""Chooses what loads the model or head that drafts for the served model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.errors import ModelNotFound, StartupError
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import KVGroup
from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest
from penstock.prepare.folder import TOKENIZER
from penstock.protocol.to_worker import RankGroup, Setup
from penstock_worker.batch.slots import Slots
from penstock_worker.device.memory import memory_of
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import DeviceForward, DeviceRecipe, Forward, Recipe
from penstock_worker.loading.computable import check_files
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.sampler.interface import QueuedSampler
from penstock_worker.speculation.beside import Beside
from penstock_worker.speculation.draft_model import DraftModel
from penstock_worker.speculation.drafter import DraftLimits, DraftRows
from penstock_worker.speculation.drafting import Proposer
from penstock_worker.speculation.on_device import BuildWithDraft, DeviceBeside


class LoadsDrafts(Protocol):
    """Loads what drafts."""

    @property
    def told(self) -> dict[str, str]:
        """What the log says of the drafts."""

    def recipe(self) -> Recipe:
        """Returns the recipe of both models."""

    @property
    def served_parts(self) -> int:
        """How many of `kv_blocks`, on a device of `blocks`, are the served model's, once the
        recipe's forward pass has been made. They come first."""

    def proposer(self, slots: Slots, sampler: QueuedSampler, host_blocks: int) -> Proposer:
        """Returns the proposer, once the recipe's forward pass has been made. `sampler`: that of
        the served model."""


def draft_loader(
    prepared: PreparedModel, served: Recipe, setup: Setup, threads: int, ranks: Ranks
) -> LoadsDrafts | None:
    """Returns what loads the draft model or the head that `setup` asks for; None if it asks for
    none. `prepared`, `served`: of the model that is served. Raises StartupError."""
    method = None if setup.speculation is None else setup.speculation.method
    if method == "draft_model":
        return DraftLoader(prepared, served, setup, threads, ranks)
    if setup.speculation is not None and method == "mtp" and setup.speculation.model:
        from penstock_worker.speculation.assistant_loading import AssistantLoader

        return AssistantLoader(prepared, served, setup, threads, ranks)
    if method in ("eagle3", "mtp"):
        from penstock_worker.speculation.head_loading import HeadLoader

        return HeadLoader(prepared, served, setup, threads, ranks)
    return None


BACKENDS = ("cpu", "reference", "triton")
"""The backends that serve draft models."""


class DraftLoader:
    """Loads the model that `setup.speculation` names, with as many blocks as the served one."""

    def __init__(
        self,
        prepared: PreparedModel,
        served: Recipe,
        setup: Setup,
        threads: int,
        ranks: Ranks,
    ) -> None:
        """`prepared`, `served`: of the model that is served. Raises StartupError where the other
        can't draft for it, UnsupportedModel where its files lack something."""
        folder = "" if setup.speculation is None else setup.speculation.model
        draft = without_media(_manifest(folder))
        name = served.backend.split()[0]
        check_served(served, name, draft, ranks)
        check_vocabularies((prepared, setup.model_dir), (draft, folder))
        self._positions = min(setup.max_model_len, draft.decoder.max_position)
        own = msgspec.structs.replace(
            setup,
            model_dir=folder,
            digest="",
            attention_backend=name,
            max_model_len=self._positions,
            dtype="auto",
            kv_cache_dtype="auto",
            calculate_kv_scales=False,
            quantization="none",
            load_format="auto",
            group=_alone(setup.group),
            max_loras=0,
            max_lora_rank=0,
            lora_whole_matrices=False,
            lora_experts=False,
            expert_parallel=False,
            cpu_experts="off",
        )
        self._name = draft.name
        self._recipe = choose(draft, own, threads)
        check_layers(self._recipe, draft)
        check_files(draft, f"speculative_config: the draft model {draft.name}")
        self._setup = setup
        self._vocab = min(prepared.decoder.vocab_size, draft.decoder.vocab_size)
        self._ends = frozenset(prepared.generation.eos_token_ids)
        self._served = served
        self._loaded: tuple[Forward, int] | None = None
        self.served_parts = 0

    @property
    def told(self) -> dict[str, str]:
        """What the log says of the drafts."""
        return {"draft": self._name, "draft_dtype": self._recipe.dtype}

    def recipe(self) -> Recipe:
        """Returns the recipe of both models."""
        own = self._recipe
        served = replace(
            self._served,
            block_bytes=self._served.block_bytes + own.block_bytes * len(own.kv_groups),
            build=self._build,
        )
        if isinstance(served, DeviceRecipe) and isinstance(own, DeviceRecipe):
            return replace(served, graphs=served.graphs + own.graphs)
        return served

    def _build(self) -> Callable[[int], Forward]:
        served, draft, groups = self._served, self._recipe, len(self._recipe.kv_groups)
        if isinstance(served, DeviceRecipe) and isinstance(draft, DeviceRecipe):
            return self._build_on_device(served, draft)
        build, build_draft = served.build(), draft.build()

        def with_blocks(blocks: int) -> Forward:
            forward = build_draft(groups * blocks)
            self._loaded = forward, blocks
            both = Beside(build(blocks), forward, groups)
            self.served_parts = len(both.served.kv_blocks())
            return both

        return with_blocks

    def _build_on_device(self, served: DeviceRecipe, draft: DeviceRecipe) -> BuildWithDraft:
        build, build_draft, groups = served.build(), draft.build(), len(draft.kv_groups)

        def with_blocks(blocks: int) -> DeviceForward:
            forward = build_draft(groups * blocks)
            self._loaded = forward, blocks
            model = build(blocks)
            self.served_parts = len(model.blocks())
            return DeviceBeside(model, forward, groups, captured=(model, forward))

        return BuildWithDraft(build, build_draft, with_blocks, memory_of(served.device))

    def proposer(self, slots: Slots, sampler: QueuedSampler, host_blocks: int) -> DraftModel:
        """Returns the proposer, once the recipe's forward pass has been made. `sampler`: that of
        the served model."""
        if self._loaded is None or self._setup.speculation is None:
            raise RuntimeError("the draft model has not been loaded")
        forward, blocks = self._loaded
        limits = DraftLimits(
            self._setup.speculation.num_speculative_tokens,
            self._positions,
            self._vocab,
            self._ends,
            self._setup.max_num_batched_tokens,
        )
        rows = DraftRows(blocks, host_blocks, self._setup.block_size)
        groups = len(self._recipe.kv_groups)
        return DraftModel(forward, sampler, slots, rows, limits, groups)


def _alone(group: RankGroup | None) -> RankGroup | None:
    """Each rank has all of the draft model, on its own device."""
    return None if group is None else msgspec.structs.replace(group, tensor=1, pipeline=1)


def _manifest(folder: str) -> PreparedModel:
    """Raises ModelNotFound or UnsupportedModel."""
    try:
        return load_manifest(folder)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"speculative_config: the draft model {error}; an engine core that is started by itself"
            " is told the folder that `penstock prepare` prints"
        ) from None


def check_served(served: Recipe, backend: str, draft: PreparedModel, ranks: Ranks) -> None:
    """Raises StartupError where the served model can't have a draft model."""
    if backend not in BACKENDS:
        raise StartupError(
            f"speculative_config names the draft model {draft.name}, and the attention backend is "
            f"{backend}; draft models are served by {', '.join(BACKENDS)}"
        )
    if ranks.place.pipeline > 1:
        raise StartupError(
            f"speculative_config names the draft model {draft.name}, and pipeline_parallel_size is "
            f"{ranks.place.pipeline}; with a draft model, it has to be 1"
        )
    first: KVGroup = served.kv_groups[0]
    if first.forgets:
        raise StartupError(
            f"speculative_config names the draft model {draft.name}; none can draft for a model "
            "without a layer that sees the whole context"
        )


def check_layers(recipe: Recipe, draft: PreparedModel) -> None:
    """Raises StartupError for a model that can't draft for any."""
    if recipe.states is not None or draft.decoder.encoder_rows:
        raise StartupError(
            f"{draft.name} can't be a draft model: it has recurrent layers, or an encoder; "
            "allowed are decoders of attention layers"
        )


def without_media(prepared: PreparedModel) -> PreparedModel:
    """Placeholders of media are tokens like others to a draft model."""
    config = prepared.decoder
    if not isinstance(config, ModelConfig) or not config.takes_media or config.encoder_rows:
        return prepared
    config = msgspec.structs.replace(config, vision=None, audio=None)
    return msgspec.structs.replace(prepared, config=config, media=None)


Model = tuple[PreparedModel, str]
"""A prepared model with its prepared folder."""


def check_vocabularies(served: Model, draft: Model) -> None:
    """Raises StartupError unless all ids that both tokenizers know are the same tokens. One may
    know more of them, and either model may have rows of padding after them."""
    digests = [prepared.contents.get(TOKENIZER) for prepared, _ in (served, draft)]
    if digests[0] is not None and digests[0] == digests[1]:
        return
    texts, others = _texts(served), _texts(draft)
    shared = [
        (own, other)
        for own, other in zip(texts, others, strict=False)
        if own is not None and other is not None
    ]
    different = sum(own != other for own, other in shared)
    if not different and 2 * len(shared) > max(len(texts), len(others)):
        return
    names = served[0].name, draft[0].name
    raise StartupError(
        f"{names[1]} can't draft for {names[0]}: of {len(texts)} and {len(others)} tokens,"
        f" {len(shared) - different} have the same id; a draft model has to have the tokenizer of"
        " the model that is served"
    )


def _texts(model: Model) -> list[str | None]:
    """Returns the texts of all ids in order; None for those that stand for nothing."""
    prepared, folder = model
    path = Path(folder) / TOKENIZER
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StartupError(f"{path} can't be read: {error}") from error
    from penstock.text.tokenizer import Tokenizer  # Here: most workers need no tokenizer.

    found = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None).table.texts
    return list(found[: prepared.decoder.vocab_size])
