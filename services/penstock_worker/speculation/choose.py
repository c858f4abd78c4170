"""Chooses what drafts tokens, for the model and settings that a worker has."""

from __future__ import annotations

from collections.abc import Callable

from penstock import logs
from penstock.errors import StartupError
from penstock.kv_layout import KVGroup, state_of
from penstock.model_config import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock.speculation import DraftMethod, SpeculativeConfig
from penstock_worker.batch.slots import Slots
from penstock_worker.grammar import SlotGrammars
from penstock_worker.parallel.place import RankPlace
from penstock_worker.speculation.draft_model import DraftModel
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
    groups: tuple[KVGroup, ...],
    *,
    grammars: SlotGrammars,
    runs_ahead: bool = False,
    model: DraftModel | None = None,
) -> Drafting:
    """Returns what drafts for a model. `model` drafts where nothing can be looked up. For the other
    parameters see `choose_proposer`."""
    config = setup.speculation
    if model is None or config is None:
        proposer = choose_proposer(setup, slots, place, groups, runs_ahead=runs_ahead)
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
    groups: tuple[KVGroup, ...],
    *,
    runs_ahead: bool = False,
) -> Proposer:
    """Returns what drafts for these slots: nothing, where that is not asked for or not possible.

    `groups`: the model's KV groups. `runs_ahead`: whether steps are begun before the host knows the
    tokens of those before.
    """
    config = setup.speculation
    if config is None:
        return NO_PROPOSER
    reason = _hindrance(place, groups)
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
    ways = _WAYS[config.method](config, not (runs_ahead and together))
    return LookupProposer(slots, ways, config.num_speculative_tokens, together=together)


def _beside_model(config: SpeculativeConfig, slots: Slots, *, together: bool) -> LookupProposer:
    """Returns what looks up drafts that are better than a draft model's: those behind long runs,
    and in what the request says will come."""
    long = config.prompt_lookup_max
    ways: list[Lookup] = [
        PredictionLookup(_reach(config)),
        SuffixLookup(RunLengths(long, long), RecentOutputs(long)),
    ]
    return LookupProposer(slots, ways, config.num_speculative_tokens, together=together)


def _hindrance(place: RankPlace, groups: tuple[KVGroup, ...]) -> str | None:
    """Returns why drafts can't be checked; None if they can."""
    if state_of(groups) is not None:
        return "the model has recurrent layers, whose states can't go back behind a wrong draft"
    if not (place.first and place.last):
        return "the stages of a pipeline don't know one another's drafts"
    return None


def _reach(config: SpeculativeConfig) -> RunLengths:
    return RunLengths(config.prompt_lookup_min, config.prompt_lookup_max)


def _ngram(config: SpeculativeConfig, shared: bool) -> list[Lookup]:
    return [PredictionLookup(_reach(config)), PromptLookup(_reach(config))]


def _suffix(config: SpeculativeConfig, shared: bool) -> list[Lookup]:
    recent = RecentOutputs(config.prompt_lookup_min) if shared else None
    return [PredictionLookup(_reach(config)), SuffixLookup(_reach(config), recent)]


_WAYS: dict[DraftMethod, Callable[[SpeculativeConfig, bool], list[Lookup]]] = {
    "ngram": _ngram,
    "suffix": _suffix,
}
"""Ways to look drafts up, by method. `shared`: whether outputs of other sequences are kept."""
