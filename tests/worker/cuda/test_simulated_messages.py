"""The simulated GPUs order what ranks say to one another as NCCL's streams do, and refuse what
would go wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock_worker.forward.queued import StageEnds
from penstock_worker.parallel.group import Group
from penstock_worker.parallel.ranks import Ranks
from tests.worker.cuda.simulated.device import Device, Misuse
from tests.worker.cuda.simulated.nccl import RUBBISH
from tests.worker.cuda.simulated.ranks import OnDevices
from tests.worker.cuda.simulated.tensors import CUDA
from tests.worker.cuda.simulated.torch_cuda import simulated_ranks
from tests.worker.cuda.test_simulated_gpu import captured

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

Says = Callable[[Group], object]


class Pair:
    """Two ranks, which say something in turn, or at once."""

    def __init__(self, formed: OnDevices) -> None:
        self.formed = formed

    def turn(self, rank: int, says: Says) -> Any:
        """Alone: whom it waits for queues nothing meanwhile."""
        formed = self.formed
        ranks = formed.ranks[rank]

        def call() -> Any:
            with torch.inference_mode():
                return says(ranks._group)

        formed.hosts.expect(1)
        return formed.pool.submit(formed.hosts.run, formed.devices[ranks], call).result(30)

    def both(self, first: Says, second: Says) -> None:
        """One after the other."""
        self.turn(0, first)
        self.turn(1, second)

    def at_once(self, *says: Says) -> list[Any]:
        def one(ranks: Ranks) -> Any:
            with torch.inference_mode():
                return says[ranks.place.rank](ranks._group)

        return self.formed.computing(one)


def pair_of(tensor: int, stages: int) -> Iterator[Pair]:
    devices = [Device(1 << 20), Device(1 << 20)]
    with simulated_ranks(devices) as hosts, OnDevices(hosts, tensor, stages) as formed:
        yield Pair(formed)


@pytest.fixture
def stages() -> Iterator[Pair]:
    yield from pair_of(1, 2)


@pytest.fixture
def tensor_ranks() -> Iterator[Pair]:
    yield from pair_of(2, 1)


def full(value: float, size: int = 4) -> Tensor:
    return torch.full((size,), value, device=CUDA)


def receive(group: Group, size: int = 4) -> Tensor:
    return group.receive((size,), torch.float32)


def fetched(x: Tensor) -> list[float]:
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    host.copy_(x, non_blocking=True)
    torch.cuda.synchronize()
    return host.tolist()


def wait(group: Group) -> None:
    torch.cuda.synchronize()


def test_messages_come_in_order_and_nobody_waits(stages: Pair) -> None:
    def three(group: Group) -> None:
        for value in (1.0, 2.0, 3.0):
            group.send(full(value))

    stages.turn(0, three)
    sender = stages.formed.hosts.devices[0]
    assert sender.waits == []
    assert sender.main.done == 0
    found = stages.turn(1, lambda group: fetched(torch.stack([receive(group) for _ in range(3)])))
    assert [row[0] for row in found] == [1.0, 2.0, 3.0]
    assert sender.waits == []
    assert len(sender.streams) == 2
    assert sender.main.done > 0


def test_memory_of_a_message_is_free_when_it_was_delivered(stages: Pair) -> None:
    sender = stages.formed.hosts.devices[0]
    for value in (1.0, 2.0):
        stages.turn(0, lambda group, value=value: group.send(full(value)))
        stages.turn(1, lambda group: fetched(receive(group)))
    stages.turn(0, lambda group: [group._sent_before(), wait(group)])
    assert sender.allocated == 0


def test_a_send_reads_its_buffer_as_late_as_may_be(stages: Pair) -> None:
    """What was queued behind it has been done by then."""
    kept: list[Tensor] = []

    def send_and_go_on(group: Group) -> None:
        group.send(full(1.0))
        kept.append(full(2.0))

    stages.turn(0, send_and_go_on)
    assert kept[0].content.isnan().all()
    assert stages.turn(1, lambda group: fetched(receive(group))) == [1.0] * 4
    assert (kept[0].content == 2.0).all()


def test_a_buffer_holds_rubbish_until_its_message_is_there(stages: Pair) -> None:
    x = stages.turn(1, receive)
    assert x.content.isnan().all()
    with pytest.raises(Misuse, match="no rank has queued"):
        stages.turn(1, wait)
    assert (x.content.view(torch.uint8) == RUBBISH).all()
    stages.turn(0, lambda group: group.send(full(5.0)))
    stages.turn(1, wait)
    assert (x.content == 5.0).all()


def test_a_host_that_waits_lets_the_others_on(stages: Pair) -> None:
    def late(group: Group) -> None:
        group.send(full(7.0))

    for _ in range(5):
        assert stages.at_once(late, lambda group: fetched(receive(group)))[1] == [7.0] * 4


def test_a_group_that_is_cut_lets_its_devices_go_on(stages: Pair) -> None:
    x = stages.turn(1, receive)
    stages.formed.ranks[1].cut()
    stages.turn(1, wait)
    assert (x.content.view(torch.uint8) == RUBBISH).all()


def test_what_all_say_is_part_of_a_graph(tensor_ranks: Pair) -> None:
    mine = [torch.empty(0)] * 2

    def graph(group: Group) -> list[float]:
        rank = group.place.rank
        mine[rank], out = full(0.0, 2), full(0.0, 8).view(2, 4)

        def work() -> None:
            both = group.exchange(group.gather(mine[rank])).view(2, 2)
            out.copy_(group.gather(both.view(-1)))

        work()
        recording = captured(work)
        mine[rank].fill_(rank + 1.0)
        recording.replay()
        mine[rank].fill_(rank + 3.0)
        recording.replay()
        return fetched(out)

    expected = [[3.0, 3.0, 3.0, 3.0], [4.0, 4.0, 4.0, 4.0]]
    assert tensor_ranks.at_once(graph, graph) == [expected, expected]


def test_a_stage_may_overwrite_what_it_has_handed_on(stages: Pair) -> None:
    """The graphs of its next step do so."""
    ranks, received = stages.formed.ranks, []

    def ends(rank: int) -> StageEnds:
        place = ranks[rank].place
        model = SimpleNamespace(
            shard=SimpleNamespace(place=place),
            config=SimpleNamespace(hidden_size=4),
            send=ranks[rank].send,
            receive=lambda rows: ranks[rank].receive((rows, 4), torch.float32),
        )
        return StageEnds(model, 2, torch.float32, CUDA)

    def hand_on(group: Group) -> None:
        hidden, both = full(0.0, 8).view(2, 4), ends(0)
        for value in (1.0, 2.0):
            hidden.fill_(value)
            both.leave(hidden)

    def take_over(group: Group) -> None:
        both = ends(1)
        for _ in range(2):
            both.enter(2)
            received.append(fetched(both.before))

    stages.turn(0, hand_on)
    stages.turn(1, take_over)
    assert received == [[[1.0] * 4] * 2, [[2.0] * 4] * 2]


# ---- deliberately wrong programs


def rewrite(group: Group) -> None:
    x = full(1.0)
    group.send(x)
    x.fill_(2.0)


def rewrite_by_graph(group: Group) -> None:
    x = full(1.0)
    again = captured(lambda: x.add_(1.0))
    group.send(x)
    again.replay()


def take(group: Group) -> list[float]:
    return fetched(receive(group))


def impatient(group: Group) -> None:
    x = torch.empty(16, dtype=torch.uint8, device=CUDA)
    group._before.recv([x], 0, 0)
    x.view(torch.float32).add_(1.0)


def never_waited(group: Group) -> None:
    """What was queued reads the buffer; nobody waited."""
    x = torch.empty(16, dtype=torch.uint8, device=CUDA)
    group._before.recv([x], 0, 0)
    fetched(x)


def quiet(group: Group) -> None:
    pass


def raw(x: Tensor) -> Says:
    return lambda group: group._after.send([x], 1, 0)


STAGES: dict[str, tuple[Says, Says, str]] = {
    "rewritten": (rewrite, take, "written while it was being sent"),
    "rewritten by a graph": (rewrite_by_graph, take, "written while it was being sent"),
    "never waited for": (lambda group: group.send(full(1.0)), never_waited, "was not waited for"),
    "read too soon": (lambda group: group.send(full(1.0)), impatient, "was not waited for"),
    "unlike sizes": (lambda group: group.send(full(1.0, 3)), take, "12 bytes are sent, 16"),
    "nobody sends": (quiet, take, "no rank has queued"),
    "nobody receives": (lambda group: [group.send(full(1.0)), wait(group)], quiet, "no rank has"),
    "of the host": (raw(torch.ones(4)), quiet, "memory of the cpu"),
    "in pieces": (
        lambda group: group._after.send([full(1.0, 8)[::2]], 1, 0), quiet, "isn't contiguous"
    ),
    "sent in a graph": (
        lambda group: [full(1.0), captured(lambda: group.send(full(1.0)))], quiet, "is sent or"
    ),
    "received in a graph": (quiet, lambda group: captured(lambda: receive(group)), "or received"),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGES)
def test_misuse_of_messages(stages: Pair, name: str) -> None:
    first, second, message = STAGES[name]
    with pytest.raises(Misuse, match=message):
        stages.both(first, second)


def test_a_message_is_not_waited_for_in_a_graph(stages: Pair) -> None:
    stages.turn(1, receive)
    with pytest.raises(Misuse, match="a message is waited for"):
        stages.turn(0, lambda group: [group.send(full(1.0)), captured(group._sent_before)])


def gathers(size: int) -> Says:
    return lambda group: fetched(group.gather(full(1.0, size)))


def late_connection(group: Group) -> None:
    x = full(1.0)
    captured(lambda: group.gather(x))


def on_its_own_stream(group: Group) -> None:
    group._tensor._allgather_base(full(0.0, 8), full(1.0), SimpleNamespace(asyncOp=True))


def beyond_its_group(group: Group) -> None:
    x, out = full(1.0), full(0.0, 8).view(2, 4)
    out.copy_(group.gather(x))
    graph = captured(lambda: out.copy_(group.gather(x)))
    group._tensor.aborted = True
    graph.replay()


def exchanges(group: Group) -> list[float]:
    return fetched(group.exchange(full(1.0, 4).view(2, 2)))


TENSOR: dict[str, tuple[Says, Says, str]] = {
    "unlike sizes": (gathers(4), gathers(3), "ranks don't do the same"),
    "unlike calls": (gathers(4), exchanges, "ranks don't do the same"),
    "alone": (gathers(4), quiet, "no rank has queued"),
    "connected late": (late_connection, late_connection, "connected while a graph"),
    "its own stream": (on_its_own_stream, on_its_own_stream, "isn't simulated"),
    "beyond its group": (beyond_its_group, beyond_its_group, "communicator is gone"),
}


@pytest.mark.parametrize("name", TENSOR)
def test_misuse_of_what_all_say(tensor_ranks: Pair, name: str) -> None:
    first, second, message = TENSOR[name]
    with pytest.raises(Misuse, match=message):
        tensor_ranks.at_once(first, second)


def test_a_tensor_of_another_device(stages: Pair) -> None:
    x = stages.turn(0, lambda group: full(1.0))
    with pytest.raises(Misuse, match="of another rank's device"):
        stages.turn(1, lambda group: x + 1.0)
