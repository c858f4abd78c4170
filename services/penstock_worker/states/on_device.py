"""The states of a model whose recurrent layers a device computes."""

from __future__ import annotations

from penstock.kv_layout import KVGroup, state_of, state_sizes
from penstock.model_config import ModelConfig
from penstock.protocol.to_worker import Setup
from penstock.recurrent_spec import result_numbers
from penstock_worker.states.device_states import DeviceStates


def device_states(
    config: ModelConfig, groups: tuple[KVGroup, ...], setup: Setup
) -> DeviceStates | None:
    """Returns the states of a model with these groups; None if it has no recurrent layers.
    `config`: of this rank's part."""
    group = state_of(groups)
    if group is None:
        return None
    specs = [config.layer(number).recurrent for number in range(config.num_layers)]
    results = [0 if spec is None else result_numbers(spec) for spec in specs]
    return DeviceStates(state_sizes(config), group, setup.max_num_seqs, results)
