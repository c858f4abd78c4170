"""The states of a model whose recurrent layers a device computes."""

from __future__ import annotations

from penstock.model.kv_layout import KVGroup, state_of, state_sizes
from penstock.model.recurrent_spec import result_numbers
from penstock.protocol.to_worker import Setup
from penstock_worker.parallel.shard import Shard
from penstock_worker.states.device_states import DeviceStates
from penstock_worker.states.planning import snapshots_for


def device_states(shard: Shard, groups: tuple[KVGroup, ...], setup: Setup) -> DeviceStates | None:
    """Returns the states of a rank's part of a model with these groups; None if the model has no
    recurrent layers."""
    group = state_of(groups)
    if group is None:
        return None
    config = shard.own
    specs = [config.layer(number).recurrent for number in range(config.num_layers)]
    results = [0 if spec is None else result_numbers(spec) for spec in specs]
    asked, place = setup.speculation, shard.place
    drafts = asked is not None and not asked.automatic and place.first and place.last
    snapshots = snapshots_for(shard.config, setup) if drafts else 0
    return DeviceStates(state_sizes(config), group, setup.max_num_seqs, results, snapshots)
