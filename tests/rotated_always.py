"""What takes no turns though its file does: what separates tenants, keys, salts and adapters; a
case of each rule of samplers, stops and finish reasons; a case of each promise."""

from __future__ import annotations

PROMISES: dict[str, tuple[str, ...]] = {
    "alone and in company, the same bits": (
        "tests/worker/forward/test_cpu_bit_identity.py",
        "tests/worker/forward/test_bit_identity.py",
        "tests/worker/models/test_family_bits.py",
        "tests/kernels/cpu/test_rows.py",
        "tests/kernels/cpu/test_decoder_rows.py",
        "tests/system/test_invariance.py::test_the_same_among_32_others",
    ),
    "a worker, an engine core or a gateway dies, and streams go on with the same bytes": (
        "tests/system/test_recovery.py::test_a_stream_goes_on_when_a_process_is_killed_under_it",
        "tests/system/test_resumed_streams.py::test_answers_outlive_their_gateways",
        "tests/shared/client/test_client_resumes.py",
    ),
    "signed answers that anybody can compute again": (
        "tests/system/test_receipts.py::test_an_honest_answer_is_equal",
    ),
    "KV from disk or another engine core changes no answer": (
        "tests/system/test_disk_kv.py::test_a_later_life_finds_prompts_and_says_the_same",
        "tests/system/test_kv_transfer.py::test_another_engine_core_has_computed_it",
        "tests/engine/histories/test_histories.py",
    ),
    "audits find what went wrong": ("tests/engine/waiting/test_live_audit.py",),
    "training on what was sampled": ("tests/training/test_trainer_forward.py",),
}
"""What README.md and docs/guides/exactness.md promise, and tests of it: of each the first case
runs at every landing."""

FIRST: tuple[str, ...] = (
    *(name for names in PROMISES.values() for name in names),
    "tests/kernels/cpu/test_sampler.py",
    "tests/kernels/triton/test_attention.py",
    "tests/kernels/triton/test_levels.py",
    "tests/kernels/triton/test_nibbles.py",
    "tests/kernels/triton/test_gguf_linear.py::test_sums_of_groups",
    "tests/kernels/triton/test_gguf_linear.py::test_parts_that_begin_within_a_unit",
    "tests/kernels/triton/test_packed_tiles.py",
    "tests/kernels/triton/test_paired_values.py",
    "tests/kernels/triton/test_products.py::test_which_operand_is_first_depends_on_the_matrix_alone",
    "tests/kernels/triton/test_row_parts.py",
    "tests/kernels/triton/test_rows.py",
    "tests/kernels/triton/test_sampling.py",
    "tests/planning/cells/",
    "tests/shared/client/test_client_blame.py",
    "tests/system/test_disk_kv_drafts.py::test_who_drafts_and_who_does_not_finds_the_same_blocks",
    "tests/worker/cuda/test_expert_room.py",
    "tests/worker/cuda/test_experts_beside_card.py",
    "tests/worker/cuda/test_streamed_experts.py",
    "tests/worker/cuda/test_heads_on_device.py::test_outputs_are_those_without_drafts",
    "tests/system/test_adapters.py::test_the_model_and_adapters_together_say_what_each_says_alone",
    "tests/system/test_keys.py",
    "tests/system/test_shared_requests.py::test_the_second_is_not_computed",
    "tests/worker/adapters/",
    "tests/worker/sampler/",
)
"""Files, folders and single tests: the first case of each test runs at every landing."""

ALWAYS: tuple[str, ...] = (
    "tests/engine/handlers/test_adoption.py",
    "tests/engine/handlers/test_sharing.py",
    "tests/engine/histories/test_histories.py::test_long_histories_meet_what_they_are_for[audits]",
    "tests/engine/histories/test_histories.py::test_long_histories_meet_what_they_are_for[claims]",
    "tests/engine/histories/test_histories.py::test_long_histories_meet_what_they_are_for[disks-of-ranks]",
    "tests/engine/histories/test_histories.py::test_long_histories_meet_what_they_are_for[shared]",
    "tests/engine/policies/test_pace.py::test_a_newcomer_with_a_claim_takes_no_turn_from_streams",
    "tests/gateway/keys/test_access.py",
    "tests/gateway/keys/test_other_tenants.py",
    "tests/gateway/keys/test_rate_limits.py::test_keys_with_the_same_limits_have_a_count_each",
    "tests/gateway/keys/test_rate_limits.py::test_requests_a_minute",
    "tests/gateway/realtime/test_session.py::test_a_key_that_was_taken_away_begins_nothing",
    "tests/kernels/cpu/test_mechanisms.py::test_in_float32",
    "tests/kernels/cpu/test_sampler.py::test_edits_that_cannot_be_are_refused",
    "tests/kernels/triton/test_gguf_linear.py::test_products_of_packed_blocks_equal_those_of_their_numbers[1-70-Q5_0]",
    "tests/kernels/triton/test_gguf_linear.py::test_products_of_packed_blocks_equal_those_of_their_numbers[19-3-Q6_K]",
    "tests/shared/client/test_client_resumes.py::test_an_answer_is_not_ended_by_other_numbers",
    "tests/worker/models/test_chosen_tokens.py::test_of_equal_scores_the_first_are_chosen",
    "tests/worker/models/test_twins.py::test_equals_its_twin[nanbeige]",
    "tests/worker/pooling/test_cpu_pooling.py::test_encoders_equal_transformers",
    "tests/worker/sampler/test_sampler.py::test_a_row_that_is_not_finite_fails_alone",
)
"""And those of which every case does."""
