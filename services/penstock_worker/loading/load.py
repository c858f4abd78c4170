"""Loads a model for the engine core's Setup, and builds its StepRunner."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from penstock.config.bundled import GRAMMARS, bundled
from penstock.config.settings import TransportSettings
from penstock.errors import StartupError
from penstock.model.media_facts import alignment_of
from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest
from penstock.prepare.folder import check_weights
from penstock.process import logs
from penstock.process.start_phases import START
from penstock.protocol.from_worker import Ready
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.opening import step_adapters
from penstock_worker.alignment.slots import alignments, can_align
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import DeviceRecipe, Forward, Recipe
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.grammar.interface import GrammarCompiler
from penstock_worker.loading.calculated_scales import check_calculated
from penstock_worker.loading.computable import check_computable, told_to_the_operator
from penstock_worker.loading.fingerprint import arithmetic, fingerprint
from penstock_worker.loading.host import host_parts
from penstock_worker.loading.loaded import Loaded
from penstock_worker.loading.parts import StepParts
from penstock_worker.machine.cpu import compute_threads
from penstock_worker.machine.memory import mib
from penstock_worker.machine.torch_import import when_torch_runs
from penstock_worker.media.planning import check_media, told_of
from penstock_worker.metrics.phases import UNWATCHED, Phases
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.sampler.memory import SamplerMemory
from penstock_worker.speculation.choose import drafting_for
from penstock_worker.speculation.drafting import Proposer
from penstock_worker.speculation.loaders import LoadsDrafts, draft_loader
from penstock_worker.steps.feature import StepFeature
from penstock_worker.steps.generate import Generate
from penstock_worker.steps.runner import StepRunner
from penstock_worker.steps.stage import EarlierStage, GrammarsElsewhere
from penstock_worker.stores.opening import open_store, refuse_store
from penstock_worker.stores.tier import StoreTier

log = logs.get(__name__)

PLAIN = TransportSettings()

MOST_WHILE_SERVING = 200_000
"""Tokens of a vocabulary up to which the grammar library is loaded after the model. It keeps
Python's lock for 0.8 s with 152,000 tokens, and with 262,000 for 2.4 s, by when a session may have
been given up: so it is then loaded together with the weights, whatever `warm_grammars` says."""


def load(
    setup: Setup,
    phases: Phases = UNWATCHED,
    ranks: Ranks = ALONE,
    transport: TransportSettings = PLAIN,
) -> Loaded:
    """Loads the weights, and allocates the KV cache in the memory that is left.

    `phases` measure the parts of a step; by `transport` other workers are reached. With several
    ranks, the KV cache has as many blocks as the rank with the least room for them.

    Raises ModelNotFound, UnsupportedModel or StartupError, which a restart can't cure, or
    GroupLost.
    """
    begun = time.monotonic()
    threads = compute_threads(setup.threads)
    when_torch_runs(_compute_alone)
    prepared = load_manifest(setup.model_dir)
    if setup.digest and prepared.digest != setup.digest:
        raise StartupError(
            f"{setup.model_dir} holds another model ({prepared.name}, {prepared.digest[:12]}) than"
            f" the engine core serves ({setup.digest[:12]})"
        )
    START.files = prepared.weights.files
    check_calculated(setup)
    if setup.load_format == "auto":
        check_weights(prepared)
    with told_to_the_operator(prepared):
        if setup.pooling is None:
            check_media(prepared, setup)
            check_computable(prepared, setup)
            return _load_generator(prepared, setup, threads, begun, phases, ranks, transport)
        check_computable(prepared, setup)
        refuse_store(setup, "a pooling model stores no KV there")
        from penstock_worker.loading.pooling import load_pooling

        return load_pooling(prepared, setup, threads, begun, phases)


def _compute_alone() -> None:
    """Backends have threads of their own."""
    torch.set_num_threads(1)


def _load_generator(
    prepared: PreparedModel,
    setup: Setup,
    threads: int,
    begun: float,
    phases: Phases,
    ranks: Ranks,
    transport: TransportSettings,
) -> Loaded:
    with ExitStack() as given_up:
        grammars = _grammars(prepared, setup, ranks)
        given_up.callback(grammars.close)
        recipe = choose(prepared, setup, threads, ranks)
        draft = draft_loader(prepared, recipe, setup, threads, ranks)
        if draft is not None:
            recipe = draft.recipe()
        if isinstance(recipe, DeviceRecipe):
            # Imported here: a worker on a CPU needs no Triton, which takes 65 MB and half a second.
            from penstock_worker.loading.device import device_parts

            parts = device_parts(recipe, setup, draft, prepared.config.vocab_size, phases, ranks)
        else:
            parts = host_parts(recipe, setup, draft, threads, phases, ranks)
            phases.time(grammars, "masks", "masks")
        loaded = assembled(parts, recipe, draft, prepared, grammars, setup, begun, ranks, transport)
        given_up.pop_all()
    if setup.warm_grammars and ranks.place.last:
        grammars.warm_when_idle()
    return loaded


def assembled(
    parts: StepParts,
    recipe: Recipe,
    draft: LoadsDrafts | None,
    prepared: PreparedModel,
    grammars: SlotGrammars,
    setup: Setup,
    begun: float,
    ranks: Ranks,
    transport: TransportSettings = PLAIN,
) -> Loaded:
    """Builds the StepRunner of a model that generates. `begun`: when its loading began, by
    time.monotonic."""
    place, host_blocks = ranks.place, parts.copies.host_blocks
    computing = f"{recipe.fingerprint} sampler {parts.sampler.fingerprint}{parts.calculated}"
    named = fingerprint(prepared.digest, computing, place.layout)
    stored = open_store(
        setup,
        parts.cache,
        f"{named}{parts.scales}",
        recipe.kv_groups,
        place=place,
        transport=transport,
    )
    rows = prepared.decoder.encoder_rows
    bounds = SlotBounds.of(setup, prepared.config.vocab_size, parts.blocks, recipe.kv_groups, rows)
    slots = Slots(bounds, tokens_from_plans=not place.last)
    ready = Ready(
        num_kv_blocks=parts.blocks,
        device=parts.device,
        fingerprint=named,
        arithmetic=arithmetic(computing, place.layout),
        disk_kv=stored is not None,
        load_seconds=time.monotonic() - begun,
        num_host_blocks=host_blocks,
        copy_seconds=parts.copy_seconds,
        kv_groups=recipe.kv_groups,
        encoder_rows=rows,
        aligns=can_align(parts.forward, prepared),
        goes_on=parts.goes_on,
        **told_of(recipe.media),
    )
    log.info(
        "model loaded",
        model=prepared.name,
        dtype=recipe.dtype,
        stored=prepared.weights.dtype,
        backend=recipe.backend,
        device=parts.device,
        kv_blocks=parts.blocks,
        kv_groups=len(recipe.kv_groups),
        host_blocks=host_blocks,
        seconds=ready.load_seconds,
        **parts.told,
        **({} if draft is None else draft.told),
        **_memory_of(recipe),
    )
    features = features_of(
        prepared,
        setup,
        recipe,
        place,
        slots,
        parts.timed_forward,
        stored=stored,
        grammars=grammars,
        memory=None if parts.memory is None else SamplerMemory(parts.memory, slots),
        model=None if draft is None else draft.proposer(slots, parts.sampler, host_blocks),
        runs_ahead=parts.runs_ahead,
    )
    runner: StepRunner[Any]
    if place.last:
        generate = Generate(
            parts.queue,
            parts.timed_forward,
            parts.timed_sampler,
            slots,
            copies=parts.timed_copies,
            features=features,
            newest=parts.newest,
            together=place.ranks > 1,
            check=parts.check,
            likeliest=parts.likeliest,
        )
        runner = StepRunner(parts.queue, generate, threads=parts.threads, phases=parts.phases)
    else:
        stage = EarlierStage(parts.timed_forward, slots, parts.timed_copies, features)
        runner = StepRunner(parts.stage_queue, stage)
    return Loaded(
        setup, runner, ready, parts.copies.device_bytes, parts.kernels, give_back=parts.give_back
    )


def features_of(
    prepared: PreparedModel,
    setup: Setup,
    recipe: Recipe,
    place: RankPlace,
    slots: Slots,
    forward: Forward,
    *,
    stored: StoreTier | None,
    grammars: SlotGrammars,
    memory: SamplerMemory | None = None,
    model: Proposer | None = None,
    runs_ahead: bool = False,
) -> list[StepFeature]:
    """Returns the features of a rank's steps, in the order in which each hook asks them: see
    `steps.feature`. `memory`: of a sampler that keeps some; for `model` and `runs_ahead` see
    `drafting_for`."""
    earlier: tuple[StepFeature | None, ...] = (
        stored,
        recipe.states,
        recipe.media,
        recipe.hand_over,
        step_adapters(recipe.adapters, prepared, setup),
    )
    last: tuple[StepFeature | None, ...] = (GrammarsElsewhere(),)
    if place.last:
        last = (
            grammars,
            memory,
            drafting_for(
                prepared, setup, slots, place, grammars=grammars, runs_ahead=runs_ahead, model=model
            ),
            alignments(slots, recipe.media, forward, alignment_of(prepared.media)),
        )
    return [feature for feature in (*earlier, *last) if feature is not None]


def _memory_of(recipe: Recipe) -> dict[str, str]:
    """Returns the memory that media and adapters take, for the log."""
    held = {"media": recipe.media, "adapters": recipe.adapters}
    return {name: mib(each.nbytes) for name, each in held.items() if each is not None}


def _grammars(prepared: PreparedModel, setup: Setup, ranks: Ranks) -> SlotGrammars:
    (made,) = bundled(GRAMMARS)
    compiler: GrammarCompiler = made(
        Path(setup.model_dir) / "tokenizer.json",
        prepared.config.vocab_size,
        prepared.generation.eos_token_ids,
        number_digits=setup.max_number_digits,
    )
    grammars = SlotGrammars(
        compiler,
        budget=setup.grammar_mask_budget_ms / 1000,
        agree=ranks.any,
        prepare=compiler.load,
        early=compiler.start_trials,
        end=compiler.close,
    )
    # Earlier stages compile nothing.
    if ranks.place.last and prepared.config.vocab_size > MOST_WHILE_SERVING:
        compiler.start_trials()
        grammars.warm()
    return grammars
