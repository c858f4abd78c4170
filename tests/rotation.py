"""What takes long and finds least takes turns: `make test` runs a fifth of it, by the number of the
commit, so that any five commits in a row run all of it. pytest alone, and --long, leave none out.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

ROOT = Path(__file__).parents[1]

WHOLE: tuple[tuple[str, ...], ...] = (
    (
        "tests/kernels/cpu/test_given_rows.py",
        "tests/loadtest/test_compare.py",
        "tests/shared/test_cli_engine_tools.py",
        "tests/system/page/test_modules.py",
        "tests/system/page/test_transcribing.py",
        "tests/system/page/test_trouble.py",
        "tests/system/test_backup.py",
        "tests/system/test_forked_starts.py",
        "tests/system/test_kv_store.py",
        "tests/system/test_kv_transfer.py",
        "tests/system/test_kv_windows_served.py",
        "tests/system/test_many_streams.py",
        "tests/system/test_memory_after_bursts.py",
        "tests/system/test_pooling.py",
        "tests/system/test_receipts.py",
        "tests/system/test_request_fields.py",
        "tests/system/test_several_machines.py",
        "tests/system/test_sounds.py",
        "tests/system/test_speculation_served.py",
        "tests/system/test_spoken_chat.py",
        "tests/system/test_windows.py",
        "tests/worker/cuda/test_on_simulated_gpu.py",
        "tests/worker/cuda/test_recurrent_drafts_on_device.py",
        "tests/worker/cuda/test_recurrent_on_device.py",
    ),
    (
        "tests/engine/simulate/test_simulation.py",
        "tests/kernels/triton/test_shared_memory.py",
        "tests/system/clients/test_clients.py",
        "tests/system/clients/test_loops.py",
        "tests/system/clients/test_triton.py",
        "tests/system/page/test_aloud.py",
        "tests/system/page/test_documents.py",
        "tests/system/page/test_pictures.py",
        "tests/system/test_adapters.py",
        "tests/system/test_agent_turns.py",
        "tests/system/test_conversation_vectors.py",
        "tests/system/test_disk_kv.py",
        "tests/system/test_disk_kv_served.py",
        "tests/system/test_draft_heads.py",
        "tests/system/test_full_disk.py",
        "tests/system/test_hearing.py",
        "tests/system/test_late_interaction.py",
        "tests/system/test_memory_limits.py",
        "tests/system/test_ranks.py",
        "tests/system/test_resumed_named_streams.py",
        "tests/system/test_several_models.py",
        "tests/system/test_start_phases.py",
        "tests/system/test_structured_outputs.py",
        "tests/test_left_behind.py",
        "tests/worker/cuda/test_adapters_on_device.py",
        "tests/worker/cuda/test_families_on_device.py",
        "tests/worker/cuda/test_worker_compiles.py",
    ),
    (
        "tests/deploy/test_retries_system.py",
        "tests/kernels/cpu/test_mechanisms.py",
        "tests/loadtest/test_adversary.py",
        "tests/loadtest/test_gpu_tiles.py",
        "tests/loadtest/test_roofline.py",
        "tests/shared/test_curve.py",
        "tests/system/page/test_api_page.py",
        "tests/system/page/test_choice_of_models.py",
        "tests/system/page/test_search.py",
        "tests/system/test_disk_kv_groups.py",
        "tests/system/test_expert_adapters.py",
        "tests/system/test_hostile_bodies.py",
        "tests/system/test_numa.py",
        "tests/system/test_offline_scripts.py",
        "tests/system/test_pause.py",
        "tests/system/test_picture_vectors.py",
        "tests/system/test_realtime.py",
        "tests/system/test_recurrent.py",
        "tests/system/test_shared_requests.py",
        "tests/system/test_transcription.py",
        "tests/system/test_without_triton.py",
        "tests/worker/cuda/test_pooling_on_device.py",
        "tests/worker/cuda/test_simulated_stages.py",
        "tests/worker/cuda/test_sounds_on_device.py",
        "tests/worker/forward/test_cpu_quality.py",
    ),
    (
        "tests/kernels/cpu/test_arm.py",
        "tests/kernels/triton/test_compile.py",
        "tests/loadtest/test_library.py",
        "tests/system/page/test_axe.py",
        "tests/system/page/test_prompts.py",
        "tests/system/page/test_titles.py",
        "tests/system/test_clock_steps.py",
        "tests/system/test_disk_kv_drafts.py",
        "tests/system/test_draft_models.py",
        "tests/system/test_given_weights.py",
        "tests/system/test_kv_roles_served.py",
        "tests/system/test_media.py",
        "tests/system/test_media_matrix.py",
        "tests/system/test_metrics_health.py",
        "tests/system/test_offline_media.py",
        "tests/system/test_read_at_end.py",
        "tests/system/test_recurrent_over_ranks.py",
        "tests/system/test_seeing.py",
        "tests/system/test_struck_operations.py",
        "tests/system/test_transformers_models.py",
        "tests/worker/cuda/test_stored_kv_of_ranks.py",
        "tests/worker/cuda/test_vision_on_device.py",
    ),
    (
        "tests/loadtest/test_generator_runs.py",
        "tests/system/clients/test_aiperf.py",
        "tests/system/clients/test_lm_eval.py",
        "tests/system/clients/test_schemathesis.py",
        "tests/system/page/test_microphone.py",
        "tests/system/page/test_rendering.py",
        "tests/system/page/test_safety.py",
        "tests/system/test_agent_sessions.py",
        "tests/system/test_asked_chat.py",
        "tests/system/test_batch_command.py",
        "tests/system/test_batches.py",
        "tests/system/test_divided_encodings.py",
        "tests/system/test_kv_handover_served.py",
        "tests/system/test_plugins.py",
        "tests/system/test_policies.py",
        "tests/system/test_process_memory.py",
        "tests/system/test_random_schemas.py",
        "tests/system/test_readiness.py",
        "tests/system/test_recurrent_models.py",
        "tests/system/test_separate_processes.py",
        "tests/system/test_several_engines.py",
        "tests/system/test_terminal.py",
        "tests/system/test_timeline.py",
        "tests/system/test_videos.py",
        "tests/system/test_weights.py",
        "tests/system/test_whisper.py",
    ),
)
"""Files that share what is dear, a system or a browser: each runs in one turn, whole. About as much
processor time in each, with what `make test` does beside the tests in some of them."""
TURNS = len(WHOLE)
CLIENTS = "tests/system/clients/"
"""The folder with tests of other people's clients, which are installed in their turns alone."""
SANITIZED = (0, 2)
"""Turns in which the sanitizers run: first with the instruction sets of their own first turn, then
with those of the second (tests/kernels/cpu/sanitize.py)."""

EACH = (
    "tests/deploy/helm/test_chart.py",
    "tests/engine/handlers/test_calls.py",
    "tests/engine/handlers/test_idle.py",
    "tests/engine/handlers/test_sharing.py",
    "tests/engine/handlers/test_sleep.py",
    "tests/engine/handlers/test_weights.py",
    "tests/engine/live/test_live.py",
    "tests/engine/policies/test_fairness.py",
    "tests/engine/policies/test_pace.py",
    "tests/engine/policies/test_starvation.py",
    "tests/engine/record/test_recording.py",
    "tests/engine/record/test_snapshot.py",
    "tests/engine/sessions/test_rank_walk.py",
    "tests/engine/simulate/test_agents.py",
    "tests/engine/simulate/test_apart.py",
    "tests/engine/simulate/test_store.py",
    "tests/engine/speculation/test_regret.py",
    "tests/engine/test_hostile_peers.py",
    "tests/engine/test_walk_drafts.py",
    "tests/gateway/chat/test_pictures.py",
    "tests/gateway/chat/test_videos.py",
    "tests/gateway/heartbeat/",
    "tests/gateway/keys/test_access.py",
    "tests/kernels/cpu/test_decoder.py",
    "tests/kernels/cpu/test_decoder_rows.py",
    "tests/kernels/cpu/test_exactness.py",
    "tests/kernels/cpu/test_packing.py",
    "tests/kernels/cpu/test_product.py",
    "tests/kernels/cpu/test_recurrent.py",
    "tests/kernels/cpu/test_rows.py",
    "tests/kernels/cpu/test_same_bits.py",
    "tests/kernels/cpu/test_sampler.py",
    "tests/kernels/test_attention.py",
    "tests/kernels/triton/",
    "tests/loadtest/test_peer_formats.py",
    "tests/shared/releases/test_configs.py",
    "tests/system/page/test_chat.py",
    "tests/system/page/test_live_view.py",
    "tests/system/page/test_use.py",
    "tests/system/test_cli.py",
    "tests/system/test_collective_rpc.py",
    "tests/system/test_docs.py",
    "tests/system/test_library.py",
    "tests/system/test_sleep.py",
    "tests/system/test_supervisor.py",
    "tests/worker/adapters/test_ends.py",
    "tests/worker/adapters/test_families.py",
    "tests/worker/adapters/test_files_of_families.py",
    "tests/worker/cuda/",
    "tests/worker/cuda_ops/",
    "tests/worker/cuda_sampler/",
    "tests/worker/forward/test_cpu_forward.py",
    "tests/worker/forward/test_cpu_instruction_sets.py",
    "tests/worker/forward/test_quantised_checkpoints.py",
    "tests/worker/grammar/test_answer_grammars.py",
    "tests/worker/grammar/test_forced_formats.py",
    "tests/worker/grammar/test_grammars_default.py",
    "tests/worker/grammar/test_held_calls.py",
    "tests/worker/grammar/test_number_digits.py",
    "tests/worker/models/test_family_bits.py",
    "tests/worker/models/test_gguf_families.py",
    "tests/worker/models/test_latents_on_cpu.py",
    "tests/worker/models/test_parity_families.py",
    "tests/worker/models/test_parity_on_cpu.py",
    "tests/worker/models/test_quantised_families.py",
    "tests/worker/models/test_recurrent_gguf.py",
    "tests/worker/models/test_recurrent_models.py",
    "tests/worker/models/test_recurrent_quantised.py",
    "tests/worker/models/test_shared_layers_on_cpu.py",
    "tests/worker/models/test_transformers_bits.py",
    "tests/worker/models/test_transformers_parity.py",
    "tests/worker/parallel/test_cpu_ranks.py",
    "tests/worker/parallel/test_cpu_ranks_files.py",
    "tests/worker/parallel/test_layouts.py",
    "tests/worker/pooling/test_adapters.py",
    "tests/worker/pooling/test_cpu_pooling.py",
    "tests/worker/pooling/test_gguf_encoders.py",
    "tests/worker/pooling/test_gguf_layered_encoders.py",
    "tests/worker/pooling/test_transformers_pooling.py",
    "tests/worker/speculation/test_draft_heads.py",
    "tests/worker/vision/test_mmproj.py",
    "tests/worker/vision/test_vision_bits.py",
    "tests/worker/vision/test_vision_files.py",
    "tests/worker/vision/test_vision_parity.py",
    "tests/worker/vision/test_vision_quantised.py",
    "tests/worker/weights/test_checkpoint_formats.py",
)
"""Files whose cases take turns one by one, and folders of such: kernels of GPUs, interpreted."""


class Case(Protocol):
    """A test's case, as pytest collects it."""

    @property
    def nodeid(self) -> str: ...


AnyCase = TypeVar("AnyCase", bound=Case)


def number_of_this_commit() -> int:
    """How many there have been; 0 where that isn't known."""
    done = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return int(done.stdout) if done.returncode == 0 else 0


def has_clients(sample: int) -> bool:
    """Whether tests of other people's clients run in the turn."""
    return any(name.startswith(CLIENTS) for name in WHOLE[sample % TURNS])


def sanitizers_turn(sample: int) -> int | None:
    """The turn of the sanitizers' own that runs in this one; None where they don't."""
    turn = sample % TURNS
    return SANITIZED.index(turn) if turn in SANITIZED else None


def others_files(sample: int) -> tuple[str, ...]:
    """The files whose turn it isn't."""
    turn = sample % TURNS
    return tuple(name for at, names in enumerate(WHOLE) if at != turn for name in names)


def others_turns(items: Iterable[AnyCase], sample: int) -> Iterator[AnyCase]:
    """The cases whose turn it isn't."""
    turn = sample % TURNS
    files = others_files(sample)
    count = 0
    for item in items:
        if item.nodeid.startswith(files):
            yield item
        elif item.nodeid.startswith(WHOLE[turn]):
            continue
        elif item.nodeid.startswith(EACH):
            if count % TURNS != turn:
                yield item
            count += 1
