"""Loads an assistant, which borrows the keys and values of the model that is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import msgspec

from penstock.errors import StartupError, UnsupportedModel
from penstock.families.gemma4_assistant import beside
from penstock.model.config import HeadConfig
from penstock.model.kv_layout import KVGroup
from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.heads import HeadForward
from penstock_worker.forward.interface import Forward, Recipe, Unable
from penstock_worker.models.aux_hidden import AuxHidden
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.sampler.interface import QueuedSampler
from penstock_worker.speculation.assistant import AssistantDrafts
from penstock_worker.speculation.beside import Beside, HeadLayers, HiddenNotes
from penstock_worker.speculation.drafter import DraftLimits
from penstock_worker.speculation.hidden_rows import HiddenRows

BACKENDS = ("cpu", "reference")
"""The backends that serve assistants."""


class AssistantLoader:
    """Loads the assistant that `setup.speculation` names. It takes no KV memory."""

    def __init__(
        self, prepared: PreparedModel, served: Recipe, setup: Setup, threads: int, ranks: Ranks
    ) -> None:
        """`prepared`, `served`: of the model that is served. Raises StartupError where the
        assistant can't draft for it, and ModelNotFound or UnsupportedModel for one that can't be
        read."""
        if setup.speculation is None:
            raise ValueError("the setup asks for no assistant")
        self._said = setup.speculation
        described = load_manifest(self._said.model)
        self._aux_hidden = _checked(served, described, ranks)
        config = _assistant_config(described, prepared)
        own = msgspec.structs.replace(
            setup, dtype="auto", kv_cache_dtype="auto", quantization="none", max_loras=0
        )
        module = _backend(served.backend.split()[0])
        try:
            self._recipe = module.assistant_recipe(
                config, prepared.decoder, described.weights, own, threads
            )
        except Unable as error:
            raise StartupError(
                f"speculative_config: the assistant can't be computed: {error}"
            ) from None
        self._name = described.name
        self._served = served
        self._limits = DraftLimits(
            self._said.num_speculative_tokens,
            min(setup.max_model_len, config.max_position),
            prepared.decoder.vocab_size,
            frozenset(prepared.generation.eos_token_ids),
            setup.max_num_batched_tokens,
        )
        self._loaded: tuple[HeadForward, HiddenRows] | None = None
        self.served_parts = 0

    @property
    def told(self) -> dict[str, str]:
        """What the log says of the drafts."""
        return {"draft": f"{self._said.method} {self._name}", "draft_dtype": self._recipe.dtype}

    def recipe(self) -> Recipe:
        """Returns the recipe of both. Blocks of a window stay one token longer: drafts are made in
        front of the newest token, and see as many tokens as that position does."""
        groups = tuple(map(_one_longer, self._served.kv_groups))
        return replace(self._served, kv_groups=groups, build=self._build)

    def _build(self) -> Callable[[int], Forward]:
        build, beside_model = self._served.build(), self._recipe.build()

        def with_blocks(blocks: int) -> Forward:
            forward = build(blocks)
            assistant = beside_model(forward)
            hidden = HiddenRows(assistant.like)
            self._loaded = assistant, hidden
            self.served_parts = len(forward.kv_blocks())
            notes = HiddenNotes(assistant, self._aux_hidden, hidden, together=False)
            return Beside(forward, HeadLayers([assistant]), note=notes.note)

        return with_blocks

    def proposer(self, slots: Slots, sampler: QueuedSampler, host_blocks: int) -> AssistantDrafts:
        """Returns the proposer, once the recipe's forward pass has been made. `sampler`: that of
        the served model."""
        if self._loaded is None:
            raise RuntimeError("the assistant has not been loaded")
        return AssistantDrafts(*self._loaded, sampler, slots, self._limits)


def _one_longer(group: KVGroup) -> KVGroup:
    return group if group.window is None else KVGroup(window=group.window + 1, chunk=group.chunk)


def _backend(name: str) -> ModuleType:
    """Imported when it is needed: each has libraries of its own."""
    if name == "cpu":
        from penstock_worker.forward.cpu import assistant

        return assistant
    from penstock_worker.forward import reference_heads

    return reference_heads


def _checked(served: Recipe, described: PreparedModel, ranks: Ranks) -> AuxHidden:
    """Raises StartupError where the served model can't have an assistant."""
    asked, name = f"speculative_config names the assistant {described.name}", served.backend
    if name.split()[0] not in BACKENDS or served.aux_hidden is None:
        raise StartupError(
            f"{asked}, and the attention backend is {name}; assistants are served by"
            f" {' and '.join(BACKENDS)}, methods suffix and ngram by all"
        )
    if ranks.place.ranks > 1:
        raise StartupError(
            f"{asked}, and there are {ranks.place.ranks} ranks; an assistant borrows the keys and"
            " values of a model on one"
        )
    return served.aux_hidden


def _assistant_config(described: PreparedModel, prepared: PreparedModel) -> HeadConfig:
    config = described.config
    if not isinstance(config, HeadConfig) or not config.borrows:
        raise StartupError(
            f"speculative_config: {described.name} is no assistant, which is what method mtp takes"
            " as `model`; a model drafts with method draft_model, a head of EAGLE-3 with eagle3"
        )
    try:
        return beside(config, prepared.decoder)
    except UnsupportedModel as error:
        raise StartupError(
            f"speculative_config: {described.name} can't draft for {prepared.name}: {error}"
        ) from None
