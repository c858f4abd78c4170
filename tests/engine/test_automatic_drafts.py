"""Drafts that nobody asked for: which models and workers have them, and which don't."""

from __future__ import annotations

import msgspec
import pytest

from penstock.config.settings import SpeculativeSettings
from penstock.model.layer_spec import LayerSpec
from penstock.model.recurrent_spec import ShortConvSpec
from penstock.model.speculation import SpeculativeConfig
from penstock.protocol.to_worker import Setup
from penstock_engine.facts import EngineFacts
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.parallel.place import RankPlace
from penstock_worker.speculation.choose import choose_proposer
from tests.engine.small_facts import facts

AUTO = SpeculativeConfig(method="suffix", automatic=True)
ASKED = SpeculativeConfig(method="suffix")


def with_layers(given: EngineFacts, *layers: LayerSpec) -> EngineFacts:
    config = msgspec.structs.replace(given.model.config, layers=layers, num_layers=len(layers))
    model = msgspec.structs.replace(given.model, config=config)
    return msgspec.structs.replace(given, model=model)


def asked(given: EngineFacts, text: str) -> EngineFacts:
    speculation = SpeculativeSettings(speculative_config=text)
    return msgspec.structs.replace(
        given, config=msgspec.structs.replace(given.config, speculation=speculation)
    )


def test_a_model_of_attention_has_them() -> None:
    assert facts().speculation == AUTO
    assert asked(facts(), "off").speculation is None


@pytest.mark.parametrize("given", ["recurrent", "ranks"])
def test_where_they_would_cost_something_they_have_to_be_asked_for(given: str) -> None:
    layers = (LayerSpec(recurrent=ShortConvSpec(width=8, kernel=3)), LayerSpec())
    costly = facts(tensor=2) if given == "ranks" else with_layers(facts(), *layers)
    assert costly.speculation is None
    assert asked(costly, '{"method": "suffix"}').speculation == ASKED


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("config", [AUTO, ASKED])
def test_on_a_gpu_they_have_to_be_asked_for(config: SpeculativeConfig, runs_ahead: bool) -> None:
    setup: Setup = msgspec.structs.replace(facts().setup(1), speculation=config)
    slots = Slots(SlotBounds(4, 32, 16, 300, 128))
    proposer = choose_proposer(setup, slots, RankPlace(), runs_ahead=runs_ahead)
    assert (proposer is None) == (config.automatic and runs_ahead)
