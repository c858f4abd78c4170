"""The adapters of a worker's steps, as its setup has them."""

from __future__ import annotations

from functools import partial

from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.interface import HoldsAdapters
from penstock_worker.adapters.models import adaptable_decoder
from penstock_worker.adapters.slot_adapters import AdapterBounds, SlotAdapters
from penstock_worker.weights.opening import open_weights


def step_adapters(
    holds: HoldsAdapters | None, prepared: PreparedModel, setup: Setup
) -> SlotAdapters | None:
    """`holds`: the backend's half. None: none are served."""
    if holds is None:
        return None
    weights = partial(
        open_weights,
        prepared.weights,
        prepared.decoder,
        load_format=setup.load_format,
    )
    model = adaptable_decoder(
        prepared.decoder,
        takes_whole=setup.lora_whole_matrices,
        takes_experts=setup.lora_experts,
    )
    return SlotAdapters(holds, model, AdapterBounds(setup.max_loras, setup.max_lora_rank), weights)
