"""Chooses what drafts tokens, for the model and settings that a worker has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import StartupError
from penstock.model.config import PreparedModel
from penstock.model.speculation import DraftMethod, SpeculativeConfig
from penstock.process import logs
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.slots import Slots
from penstock_worker.grammar import SlotGrammars
from penstock_worker.parallel.place import RankPlace
from penstock_worker.speculation.drafting import Drafting
from penstock_worker.speculation.forced import ForcedTokens
from penstock_worker.speculation.interface import NO_PROPOSER, Proposer
from penstock_worker.speculation.lookup import Lookup, LookupProposer, RunLengths
from penstock_worker.speculation.lookup_first import LookupFirst
from penstock_worker.speculation.ngram import PromptLookup
from penstock_worker.speculation.prediction import PredictionLookup
from penstock_worker.speculation.recent import RecentOutputs
from penstock_worker.speculation.suffix import SuffixLookup

log = logs.get(__name__)


def drafting_for(
    prepared: PreparedModel,
    setup: Setup,
    slots: Slots,
    place: RankPlace,
    *,
    grammars: SlotGrammars,
    runs_ahead: bool = False,
    model: Proposer | None = None,
) -> Drafting:
    """Returns what drafts for a model. `model` (a draft model, or a head) drafts where nothing can
    be looked up. For the other parameters see `choose_proposer`."""
    config = setup.speculation
    if model is None or config is None:
        proposer = choose_proposer(setup, slots, place, runs_ahead=runs_ahead)
    else:
        lookup = _beside_model(config, slots, together=place.ranks > 1)
        proposer = LookupFirst(lookup, model)
    if config is not None and proposer is not NO_PROPOSER and place.ranks == 1:
        proposer = ForcedTokens(grammars, proposer, config.num_speculative_tokens)
    ends = prepared.generation.eos_token_ids
    return Drafting(slots, proposer, ends=ends, together=place.ranks > 1)


def choose_proposer(
    setup: Setup,
    slots: Slots,
    place: RankPlace,
    *,
    runs_ahead: bool = False,
) -> Proposer:
    """Returns what drafts for these slots: nothing, where that is not asked for or not possible.

    `runs_ahead`: whether steps are begun before the host knows the tokens of those before.
    """
    config = setup.speculation
    if config is None:
        return NO_PROPOSER
    reason = _hindrance(config, place, runs_ahead=runs_ahead)
    if reason is not None:
        log.info("no tokens are drafted", reason=reason)
        return NO_PROPOSER
    log.info("tokens are drafted", method=config.method, most=config.num_speculative_tokens)
    return lookup_proposer(config, slots, together=place.ranks > 1, runs_ahead=runs_ahead)


def lookup_proposer(
    config: SpeculativeConfig, slots: Slots, *, together: bool = False, runs_ahead: bool = False
) -> Proposer:
    """Returns what looks drafts up. Raises StartupError for a method that computes them."""
    if config.method not in _WAYS:
        raise StartupError(
            f"speculative_config: method {config.method} is not served here; allowed are"
            f" {', '.join(_WAYS)}"
        )
    # Ranks that run ahead learn at different times what a released slot's last tokens were.
    shared = not (runs_ahead and together)
    ways = _ways((*config.before, config.method), config, shared=shared)
    return LookupProposer(slots, ways, config.num_speculative_tokens, together=together)


def _beside_model(config: SpeculativeConfig, slots: Slots, *, together: bool) -> LookupProposer:
    """Returns what looks drafts up before a model or a head is asked: by the methods that are
    preferred to it; without any, only what is better than theirs: what follows long runs, and
    what the request says will come."""
    long = config.prompt_lookup_max
    ways = _ways(config.before, config, shared=True)
    if not config.before:
        ways.append(SuffixLookup(RunLengths(long, long), RecentOutputs(long)))
    return LookupProposer(slots, ways, config.num_speculative_tokens, together=together)


def _ways(
    methods: Sequence[DraftMethod], config: SpeculativeConfig, *, shared: bool
) -> list[Lookup]:
    """Returns how drafts are looked up by these methods, in their order. `shared`: whether outputs
    of other sequences are kept."""
    further = [_WAYS[method](config, shared) for method in methods]
    return [PredictionLookup(_reach(config)), *further]


def _hindrance(config: SpeculativeConfig, place: RankPlace, *, runs_ahead: bool) -> str | None:
    """Returns why nothing is drafted; None if drafts can be checked, and are wanted."""
    if config.automatic and runs_ahead:
        return "on a GPU, speculative_config has to ask for it"
    if not (place.first and place.last):
        return "the stages of a pipeline don't know one another's drafts"
    return None


def _reach(config: SpeculativeConfig) -> RunLengths:
    return RunLengths(config.prompt_lookup_min, config.prompt_lookup_max)


def _ngram(config: SpeculativeConfig, shared: bool) -> Lookup:
    return PromptLookup(_reach(config))


def _suffix(config: SpeculativeConfig, shared: bool) -> Lookup:
    recent = RecentOutputs(config.prompt_lookup_min) if shared else None
    return SuffixLookup(_reach(config), recent)


_WAYS: dict[DraftMethod, Callable[[SpeculativeConfig, bool], Lookup]] = {
    "ngram": _ngram,
    "suffix": _suffix,
}
"""Ways to look drafts up, by method."""
