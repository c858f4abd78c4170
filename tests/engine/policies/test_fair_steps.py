"""The policy `fair` in steps: what is dealt to who doesn't need it goes to the others."""

from __future__ import annotations

from tests.engine.harness import Harness

PROMPT = list(range(3, 36))
"""Eight full blocks, and a token."""


def test_streams_use_what_a_tenant_was_dealt_for_a_prompt_that_is_cached() -> None:
    """The step has 8 tokens, and one tenant 8 decodes. The other's prompt of 33 tokens has a claim
    to several of them, and needs one: 32 are found in the cache."""
    h = Harness(
        scheduling_policy="fair", max_num_seqs=16, max_num_batched_tokens=8, max_model_len=40
    )
    front = h.connect()
    h.start_worker(100)
    h.submit(front, PROMPT, tenant="few", max_tokens=1, ignore_eos=True)
    h.run()
    many = [
        h.submit(front, [5 + each, 7, 9], tenant="many", max_tokens=30, ignore_eos=True)
        for each in range(8)
    ]
    streams = [each.sequences[0] for each in many]
    while not all(len(stream.tokens) > 12 for stream in streams):
        h.run_step()  # The other's first prompt is made up for.
    again = h.submit(front, PROMPT, tenant="few", max_tokens=2, ignore_eos=True)
    h.run_step()  # It was planned before the prompt came.
    before = sum(len(stream.tokens) for stream in streams)
    h.run_step()
    assert again.cached == 32
    assert len(again.sequences[0].tokens) == 1
    assert sum(len(stream.tokens) for stream in streams) == before + 7
