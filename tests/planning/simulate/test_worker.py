"""The modelled worker's answers to what a plan may leave out."""

from __future__ import annotations

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.replica import SimulatedWorker

SAMPLING = TokenSampling(1)


def answers(plans: list[Plan]) -> list[object]:
    worker = SimulatedWorker(StepCost(), max_num_seqs=4)
    return [worker.execute(plan) for plan in plans]


def test_a_sequence_like_another_answers_as_in_full() -> None:
    """Also after the other one's slot went to somebody else, and when it is referred to itself."""
    first = NewSequence(0, [7] * 5, 5, 0, SAMPLING, [])
    other = NewSequence(0, [7] * 2, 2, 0, SAMPLING, [])
    full = [
        NewSequence(1, [7] * 8, 5, 1, SAMPLING, []),
        NewSequence(2, [7] * 6, 5, 2, SAMPLING, []),
    ]
    short = [
        NewSequence(1, [7] * 3, 0, 1, SAMPLING, [], like=0),
        NewSequence(2, [7], 0, 2, SAMPLING, [], like=1),
    ]

    def plans(second: NewSequence, third: NewSequence) -> list[Plan]:
        return [
            Plan(1, 0, [], [first, second], [SlotWork(0, 0, 5), SlotWork(1, 0, 7)]),
            Plan(2, 1, [0], [other, third], [SlotWork(0, 0, 2), SlotWork(1, 7, 1)]),
            Plan(3, 2, [], [], [SlotWork(2, 0, 6), SlotWork(1, 8, 1)]),
        ]

    assert answers(plans(*short)) == answers(plans(*full))
