"""What the core knows about its model and itself: read once at start, never changed."""

from __future__ import annotations

import hashlib
import typing
from typing import Any

import msgspec

from penstock.config.settings import BIT_SETTINGS, EngineConfig
from penstock.config.tree import leaves
from penstock.errors import StartupError
from penstock.media.changes import check_operators
from penstock.model.config import EncoderConfig
from penstock.model.kv_layout import kv_groups, state_bytes, state_of
from penstock.model.media_facts import alignment_of
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import PreparedModel
from penstock.model.speculation import SpeculativeConfig
from penstock.prepare.folder import TOKENIZER
from penstock.prepare.overrides import overrides_of
from penstock.process.numa import RankNodes
from penstock.protocol.common import MAX_CALL_BYTES, GrammarKind, NamedAdapter, SleepLevel
from penstock.protocol.from_frontend import MAX_PREDICTION_TOKENS
from penstock.protocol.media import MAX_MEDIA_ITEMS, MAX_MEDIA_SPANS
from penstock.protocol.to_frontend import Limits, WeightFacts, Welcome
from penstock.protocol.to_worker import RankGroup, Setup
from penstock_engine.kv.settings import check_kept, fetches_ahead, kv_peers, prefills_from
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.pooling_tasks import pooling_of, tasks_of
from penstock_engine.scheduler.whole_inputs import longest_by_default, with_room

BYTES_PER_ID = 5
"""Largest size of a token id in msgpack, bytes."""

MEDIA_BYTES = 256 * MAX_MEDIA_ITEMS + 24 * MAX_MEDIA_SPANS
"""Largest size in msgpack of what is said of a request's media, bytes."""


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model, the settings, and what this life of the engine core is called."""

    config: EngineConfig
    model: PreparedModel
    folder: str  # the prepared folder, for workers
    tokenizer: bytes  # contents of its tokenizer.json, for front ends
    template: bytes  # of its chat template; empty: none
    boot: str  # hexadecimal id of this life
    created: int  # Unix time of its start
    adapters: tuple[NamedAdapter, ...] = ()  # of the settings, read and found sound
    started_as: str = ""  # digest of the weights that others have replaced; empty: none have
    asleep: SleepLevel = 0  # at which the model slept when the life before ended

    def __post_init__(self) -> None:
        wanted = self.config.model.max_model_len
        longest = self.model.config.max_position - self.model.encoder_rows
        if wanted is not None and wanted > longest:
            raise StartupError(
                f"max_model_len is {wanted}; {self.model.name} supports at most {longest} tokens"
            )
        self.model.check_encoder_cache(self.config.cache.encoder_cache_rows)
        if self.model.media is not None:
            check_operators(self.model.media, self.config.media)
        if self.whole:
            roomy = with_room(self.config, self.max_model_len)
            msgspec.structs.force_setattr(self, "config", roomy)
        _ = self.pooling, self.config.speculation.config, self.rank_nodes
        self.tenants()
        self._check_messages()
        check_kept(self.config.cache)
        lora = self.config.lora
        if lora.max_cpu_loras is not None and lora.max_cpu_loras < lora.max_loras:
            raise StartupError(
                f"max_cpu_loras is {lora.max_cpu_loras}; it must be at least max_loras, "
                f"{lora.max_loras}"
            )

    def _check_messages(self) -> None:
        """Whatever one request may bring, and one plan may carry, has to fit a message."""
        config = self.config
        limits, most = config.limits, config.transport.max_message_bytes
        ids = limits.max_allowed_token_ids + limits.max_bad_words_tokens + 4 * limits.max_logit_bias
        ids += self.max_prediction
        tokens = max(limits.max_request_tokens, self.max_model_len)
        step = config.scheduler.max_carried_tokens + self.max_model_len
        blocks = self._plan_blocks(step)
        needed = BYTES_PER_ID * (max(tokens, step + blocks) + ids)
        needed += config.grammar.max_grammar_bytes + MEDIA_BYTES
        if needed > most:
            raise StartupError(
                f"a request of {tokens} tokens (max_request_tokens, max_model_len), or a step that"
                f" carries {step} (max_carried_tokens) in {blocks} KV blocks, may need a message "
                f"of {needed} bytes; max_message_bytes is {most}"
            )

    @property
    def call_bytes(self) -> int:
        """Bytes that arguments and results of the workers' methods may have, so that they fit a
        message."""
        return min(MAX_CALL_BYTES, self.config.transport.max_message_bytes // 2)

    def _plan_blocks(self, carried: int) -> int:
        """Numbers of KV blocks in one plan, at most: of those that start, with so many tokens in
        all, and of those that grow."""
        if isinstance(self.model.config, EncoderConfig):
            return 0
        config, scheduler = self.model.config, self.config.scheduler
        # A byte for each number: as small as a block can be, and so as many as checkpoints take.
        groups = kv_groups(config, 1, self.max_model_len, self.block_size)
        each = carried + scheduler.max_num_batched_tokens
        whole = -(-each // self.block_size) + 2 * scheduler.max_num_seqs
        state = state_of(groups)
        if state is None or state.every is None:
            return len(groups) * whole
        every = self.config.cache.state_checkpoint_tokens or state.every
        # Of each sequence that starts: the one that it goes on after, and a tail.
        copies = scheduler.max_num_batched_tokens // every + 3 * scheduler.max_num_seqs
        return (len(groups) - 1) * whole + state.blocks * copies

    @property
    def pooling(self) -> PoolingConfig | None:
        """How vectors are made; None: the model generates text. Raises StartupError where that is
        not what the settings ask for."""
        return pooling_of(self.model, self.config.model)

    @property
    def aligned_rows(self) -> int:
        """Encoder rows of a model that says when its words are spoken; 0: it doesn't."""
        if alignment_of(self.model.media) is None or self.config.parallel.ranks > 1:
            return 0
        return self.model.encoder_rows

    @property
    def whole(self) -> bool:
        """Whether an input is computed in one step: an encoder's tokens see one another."""
        return isinstance(self.model.config, EncoderConfig)

    @property
    def takes_media(self) -> bool:
        """Whether prompts may have pictures, videos or sounds."""
        return self.model.media is not None or self.model.config.takes_media

    @property
    def block_size(self) -> int:
        """Tokens of a KV block. An encoder has no KV: its sequences hold one block each, which
        stands for the room that they take, and which no two of them share."""
        return self.longest_sequence if self.whole else self.config.cache.kv_block_size

    @property
    def longest_sequence(self) -> int:
        """Tokens that a sequence may have. What is made of a pooled prompt counts as one."""
        return self.max_model_len + (self.pooling is not None)

    def tenants(self) -> Tenants:
        """What each tenant may have. Raises StartupError if the setting says it wrongly."""
        return Tenants(self.config.scheduler.tenants)

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, tokens, where the pool is large enough; with the places of an
        encoder's rows, which the setting doesn't count."""
        wanted, longest = self.config.model.max_model_len, self.model.config.max_position
        if wanted is not None:
            return wanted + self.model.encoder_rows
        if self.pooling is not None and self.pooling.max_input is not None:
            longest = min(longest, self.pooling.max_input)
        return longest_by_default(longest, self.pooling, self.config) if self.whole else longest

    @property
    def max_prediction(self) -> int:
        """Tokens of a request's prediction."""
        return min(MAX_PREDICTION_TOKENS, self.max_model_len)

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """What drafts tokens; None: nothing does. By default drafts are off where they may cost
        something: states of recurrent layers would be held once more for each draft, ranks would
        wait for one another, and speech hardly repeats its prompt."""
        asked = self.config.speculation.config
        model = self.model
        if asked is None or self.pooling is not None or isinstance(model.config, EncoderConfig):
            return None
        costs = state_bytes(model.config) or self.config.parallel.ranks > 1 or model.encoder_rows
        return None if asked.automatic and costs else asked

    @property
    def max_loras(self) -> int:
        """Adapters that steps may use at a time; 0: none are served."""
        return self.config.lora.max_loras if self.config.lora.enable_lora else 0

    @property
    def max_lora_rank(self) -> int:
        """The highest rank of adapters; 0: none are served."""
        return self.config.lora.max_lora_rank if self.config.lora.enable_lora else 0

    @property
    def served_name(self) -> str:
        """What requests call the model, and replies."""
        return self.served_names[0]

    @property
    def hub_id(self) -> str:
        """Returns the model's name on the hub; empty for files from elsewhere, whose path is
        private."""
        return "" if self.model.source.startswith("/") else self.model.source

    @property
    def served_names(self) -> tuple[str, ...]:
        """All names by which requests may ask for the model."""
        return self.config.model.served_names or (self.model.name,)

    def welcome(self, version: int, max_len: int) -> Welcome:
        settings = self.config.scheduler
        return Welcome(
            version=version,
            boot=self.boot,
            model=self.served_name,
            digest=self.started_as or self.model.digest,
            created=self.created,
            limits=Limits(
                max_model_len=min(max_len, self.max_model_len),
                vocab_size=self.model.config.vocab_size,
                max_waiting_requests=settings.max_waiting_requests,
                max_num_seqs=settings.max_num_seqs,
                max_grammar_bytes=self.config.grammar.max_grammar_bytes,
                grammar_kinds=typing.get_args(GrammarKind),
                **msgspec.structs.asdict(self.config.limits),
            ),
            generation=self.model.generation,
            add_bos=self.model.add_bos,
            seed=self.config.model.seed,
            pooling=self.pooling,
            pooling_tasks=tasks_of(self.pooling, self.model, self.config),
            own_metrics=self.config.metrics.engine_metrics_port is not None,
            live=True,
            other_names=self.served_names[1:],
            media=self.model.media,
            max_lora_rank=self.max_lora_rank,
            max_loras=self.max_loras,
            aligns=self.aligned_rows > 0,
            pauses=True,
            sleeps=True,
            calls=True,
            prefills_from=prefills_from(self.config.cache),
            expects=fetches_ahead(self.config.cache),
            replaces=True,
            call_bytes=self.call_bytes,
            family=self.model.family,
            hub_id=self.hub_id,
            bit_settings=self._bit_settings(),
            hashes_weights=True,
            tokenizer_sha256=self.model.contents.get(TOKENIZER, ""),
            template_sha256=hashlib.sha256(self.template).hexdigest() if self.template else "",
            weights=self._weights(),
            overrides=overrides_of(self.config.model),
        )

    def _weights(self) -> WeightFacts:
        files = self.model.weights
        return WeightFacts(
            format=files.format,
            dtype=files.dtype,
            size=files.size,
            numbers=files.numbers,
            mixture=files.mixture,
        )

    def _bit_settings(self) -> dict[str, str | int | bool]:
        """The settings that decide the bits of an answer, where they aren't the default."""
        found: dict[str, str | int | bool] = {"max_model_len": self.max_model_len}
        for leaf in leaves(EngineConfig):
            if leaf.name in BIT_SETTINGS:
                value: Any = self.config
                for name in leaf.path:
                    value = getattr(value, name)
                if value != leaf.default:
                    found[leaf.name] = value
        return found

    @property
    def rank_nodes(self) -> RankNodes:
        """The NUMA nodes of each rank. Raises StartupError if the setting says them wrongly."""
        return self.config.worker.rank_nodes(self.config.parallel.ranks)

    def setup(self, version: int, group: RankGroup | None = None) -> Setup:
        """What a worker is to be; group: None where it is alone."""
        config = self.config
        return Setup(
            version=version,
            model_dir=self.folder,
            dtype=config.model.dtype,
            attention_backend=config.worker.attention_backend,
            threads=config.worker.threads,
            block_size=self.block_size,
            num_kv_blocks=config.cache.num_kv_blocks,
            kv_memory_fraction=config.cache.kv_memory_fraction,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            host_kv_bytes=round(config.cache.host_kv_gib * 2**30),
            kv_memory_bytes=round(config.cache.kv_memory_gib * 2**30),
            numa_nodes=self.rank_nodes[0 if group is None else group.rank],
            kv_cache_dtype=config.cache.kv_cache_dtype,
            calculate_kv_scales=config.cache.calculate_kv_scales,
            state_checkpoint_tokens=config.cache.state_checkpoint_tokens,
            quantization=config.model.quantization,
            matmul_precision=config.model.matmul_precision,
            grammar_mask_budget_ms=config.grammar.grammar_mask_budget_ms,
            max_number_digits=config.grammar.max_number_digits,
            warm_grammars=config.grammar.warm_grammars,
            pooling=self.pooling,
            served_name=self.served_name,
            digest=self.model.digest,
            device=config.worker.device,
            gpu_memory_utilization=config.cache.gpu_memory_utilization,
            batch_invariant=config.worker.batch_invariant,
            enforce_eager=config.worker.enforce_eager,
            flash_attention_3=config.worker.flash_attention_3,
            cpu_experts=config.worker.cpu_experts,
            load_format=config.model.load_format,
            group=group,
            expert_parallel=config.parallel.enable_expert_parallel,
            encoder_cache_rows=config.cache.encoder_cache_rows,
            media_load_bytes=config.cache.media_load_mib * 2**20,
            speculation=self.speculation,
            max_loras=self.max_loras,
            max_lora_rank=self.max_lora_rank,
            lora_whole_matrices=config.lora.lora_whole_matrices,
            lora_experts=config.lora.lora_experts,
            disk_kv_dir=config.cache.disk_kv_dir or "",
            disk_kv_bytes=round(config.cache.disk_kv_gib * 2**30),
            disk_kv_write_bytes=round(config.cache.disk_kv_write_mib * 2**20),
            worker_extensions=config.worker.worker_extensions,
            kv_store=config.cache.kv_store or "",
            kv_store_address=config.cache.kv_store_address,
            disk_kv_key_file=config.cache.disk_kv_key_file or "",
            kv_endpoint=config.cache.kv_endpoint or "",
            kv_peers=kv_peers(config.cache),
            kv_transfer_bytes=round(config.cache.kv_transfer_gib * 2**30),
        )
