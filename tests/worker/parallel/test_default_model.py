"""The default model's real weights: 9 heads and 3 KV heads, in 4 bits, over several ranks."""

from __future__ import annotations

import pytest

from penstock.model.prepared_model import PreparedModel
from penstock_worker.models.decoder import DecoderModel
from tests.worker.driver import Driver, Job, LogitsOf, make_runner
from tests.worker.parallel.together import Formed, Together

pytestmark = pytest.mark.timeout(240)

PROMPT = [504, 3575, 282, 4649, 314]
RELATIVE_TOLERANCE = 1e-3


def test_tokens_of_the_default_model_over_two_ranks(
    default_model: PreparedModel, default_float32: DecoderModel
) -> None:
    watch = LogitsOf()
    runner = make_runner(default_float32, num_blocks=8, slots=2, max_tokens=64, observer=watch)
    (true,) = Driver(runner, num_blocks=8, slots=2).run([Job(PROMPT, 3)])
    expected = watch.by_slot.popitem()[1]
    runner.close()
    with Formed(2) as formed:
        together = Together(
            formed,
            default_model.config,
            default_model.weights,
            num_blocks=8,
            slots=2,
            observer=watch,
        )
        (ours,) = Driver(together, num_blocks=8, slots=2).run([Job(PROMPT, 3)])
        together.close()
    assert ours.tokens == true.tokens
    for position, logits in watch.by_slot.popitem()[1].items():
        allowed = RELATIVE_TOLERANCE * expected[position].abs().max()
        assert (logits - expected[position]).abs().max() <= allowed
