"""The CPU backend: one call into the C++ library computes a whole step.

With dtype `auto`, the checkpoint's format is kept. Quantised GGUF tensors, and what
`checkpoints` packs of quantised safetensors, stay quantised and are multiplied with activations
quantised to int8 (groups of 32), with keys and values in bfloat16; bfloat16 and float32 checkpoints
are computed in their own dtype. An explicit dtype applies throughout, whatever the file holds.
With matmul_precision `high`, activations of all these but float32 ones keep twice as many bits.
Quantization `int8` turns a float checkpoint's matrices into the format of GGUF's Q8_0. The KV
cache's dtype can be chosen independently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.model.config import ModelConfig
from penstock.model.expert_places import parallel_places
from penstock.model.kv_layout import kv_layout
from penstock.model.mechanisms import CONVOLUTION, OF_ENCODERS, RELU
from penstock.model.media_facts import alignment_heads
from penstock.model.prepared_model import PreparedModel
from penstock.model.recurrent_spec import GatedDeltaSpec, Mamba1Spec, Mamba2Spec
from penstock.model.sharing import split_obstacle
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.decoder import Decoder, DecoderShape, entry_blocks, halves_of
from penstock_kernels.cpu.library import bits, instruction_set
from penstock_kernels.cpu.program import Program
from penstock_kernels.cpu.recurrent import MAX_HEADS, MAX_KERNEL, MAX_KEY_DIM
from penstock_worker.alignment.interface import Crossing
from penstock_worker.attention.encoded import Division
from penstock_worker.forward.aux_hidden import aux_hidden_for
from penstock_worker.forward.common_mechanisms import ON_CPUS
from penstock_worker.forward.cpu.adapters import PackedAdapters
from penstock_worker.forward.cpu.aux_hidden import CPUAuxHidden
from penstock_worker.forward.cpu.compressed_weights import entries_shape, places_of
from penstock_worker.forward.cpu.cross_layers import (
    KEY,
    QUERY,
    ShownHeads,
    beside,
    compile_stored,
    showing,
)
from penstock_worker.forward.cpu.dtypes import (
    cache_of,
    check_cache,
    dtype_of,
    in_two_parts,
    kind_of,
    numerics_of,
)
from penstock_worker.forward.cpu.expert_split import ExpertSplit, log_share
from penstock_worker.forward.cpu.forward import CPUForward
from penstock_worker.forward.cpu.latent_layers import index_shape
from penstock_worker.forward.cpu.program import compile_program
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.forward.cpu.split import WHOLE, CPUStageEnds, RankSplit, Split
from penstock_worker.forward.decoded_part import decoded_part, encoder_obstacle
from penstock_worker.forward.interface import Batch, Forward, Recipe, Unable, require
from penstock_worker.forward.purpose import LOGITS, Purpose
from penstock_worker.media.interface import BatchMedia
from penstock_worker.media.loading import ModelMedia
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.parallel.shard import Shard, head_ranges, shard_of
from penstock_worker.states.planning import groups_with_states, program_states
from penstock_worker.weights.opening import open_weights

MECHANISMS = ON_CPUS | OF_ENCODERS - {CONVOLUTION, RELU}
"""What these kernels have beyond Llama's layers (see penstock.model.mechanisms)."""


def recipe(
    prepared: PreparedModel,
    setup: Setup,
    threads: int,
    ranks: Ranks = ALONE,
    purpose: Purpose = LOGITS,
) -> Recipe:
    """Raises ImportError without the library, Unable for a model that it can't run, and
    StartupError for settings that no backend can follow."""
    config = prepared.decoder
    shapes = shapes_of(config, setup, ranks.place)
    shard, layout = shard_for(config, setup, ranks.place), kv_layout(config, setup.max_model_len)
    places = places_of(config, layout, shard.layers)
    dtype = dtype_of(setup, prepared.weights.dtype)
    cache = cache_of(setup.kv_cache_dtype, dtype)
    check_cache(cache, config)
    blocks = entry_blocks(shapes, layout.layers, cache)
    page_layers = layout.page_layers(shard.layers)
    block_bytes = blocks.size if blocks else sum(halves_of(shapes, cache)) * page_layers
    groups = groups_with_states(config, layout.groups, block_bytes, setup, ranks.place)
    states = program_states(config, groups, setup)
    media = ModelMedia(prepared, setup, ranks, threads=threads)  # in float32, as residuals are
    adaptable = purpose.adaptable(config, setup)
    adapters = None if adaptable is None else PackedAdapters(adaptable, setup, dtype)
    split = split_for(shard, ranks)
    taken = aux_hidden_for(config, setup)

    def build() -> Callable[[int], Forward]:
        weights = open_weights(prepared.weights, config)
        purpose.take(weights)
        loader = CPUWeights(config, weights, kind_of(dtype), threads)
        see, join, ends = media.load(), None, None
        aux_hidden = None if taken is None else CPUAuxHidden(taken, config)
        stored = None
        adapted = None if adapters is None else adapters.phases(split, shard.layers)
        if ranks.place.ranks == 1:
            read = loader.read(setup.max_model_len)
            rows = purpose.headless
            program = compile_program(
                config, read, split, None, places, adapted, aux_hidden, rows=rows
            )
            stored = compile_stored(config, read, places) if config.encoder_rows else None
        else:
            ends = CPUStageEnds(ranks, config.hidden_size) if ranks.place.pipeline > 1 else None
            read = replace(loader, split=split, shard=shard).read(setup.max_model_len)
            program = compile_program(shard.staged, read, split, ends, places, adapted, aux_hidden)
            if isinstance(split, ExpertSplit):
                log_share(read.layers)
            join = split.join_logits if isinstance(split, RankSplit) else None
        if adapters is not None:
            adapters.targets = program.low_rank

        def forward(blocks: int) -> Forward:
            decoder = Decoder(
                program,
                setup.block_size,
                blocks,
                cache=cache,
                threads=threads,
                two_parts=in_two_parts(setup, dtype),
                spare=shapes[0] if states is not None else None,
            )
            if states is not None:
                states.allocate(decoder.kv_blocks())
            made = CPUForward(decoder, join, ends, states, aux_hidden)
            see(made.count_layer)
            if stored is None:
                return made
            return beside_encoder(stored, decoder, made, config, alignment_heads(prepared.media))

        return forward

    return Recipe(
        backend=f"cpu {instruction_set()}",
        dtype=dtype,
        fingerprint=f"cpu {bits()} {numerics_of(setup, dtype)} KV {cache}",
        block_bytes=block_bytes,
        kv_groups=groups,
        threads_by_share=False,
        build=build,
        states=states,
        media=media.encodings,
        adapters=adapters,
        aux_hidden=taken,
    )


def shard_for(config: ModelConfig, setup: Setup, place: RankPlace) -> Shard:
    """Returns a rank's shard. Raises StartupError if the model can't be split as the setup asks."""
    parallel = setup.expert_parallel
    return shard_of(config, place, parallel_places(config, place.tensor) if parallel else None)


def split_for(shard: Shard, ranks: Ranks) -> Split:
    """Returns how a rank's matrices are split."""
    if ranks.place.tensor == 1:
        return WHOLE
    if shard.experts is None:
        return RankSplit(shard, ranks)
    return ExpertSplit(shard, ranks, shard.experts)


def beside_encoder(
    stored: Program,
    decoder: Decoder,
    made: CPUForward,
    config: ModelConfig,
    heads: Sequence[tuple[int, int]],
) -> CPUEncoderDecoder:
    """stored: see compile_stored. heads: (layer, head) of those whose attention is shown."""
    stores = CPUForward(beside(decoder, stored))
    shown = shown_heads(stored, decoder, config, heads) if heads else None
    return CPUEncoderDecoder(stores, made, config.encoder_rows, config.vocab_size, shown)


def shown_heads(
    stored: Program, decoder: Decoder, config: ModelConfig, heads: Sequence[tuple[int, int]]
) -> ShownHeads:
    """Makes what shows the attention of `heads`, (layer, head) each. stored: see compile_stored."""
    layers = ShownHeads.layers(heads)
    keys = showing(stored, config, KEY, layers)
    queries = showing(decoder.program, config, QUERY, layers)
    return ShownHeads(
        of_encoder=CPUForward(beside(decoder, keys)),
        of_decoder=CPUForward(beside(decoder, queries)),
        places=ShownHeads.places_of(heads, config.num_heads),
        heads=len(layers) * config.num_heads,
        head_dim=config.head_dim,
    )


def shapes_of(
    config: ModelConfig, setup: Setup, place: RankPlace = ALONE.place
) -> list[DecoderShape]:
    """Returns the shapes of the layers of a rank's part of the model, each once, or where they have
    entries, those of all layers in order. Raises Unable if the kernels can't run it, on all ranks
    alike."""
    require(MECHANISMS, config)
    shard = shard_for(config, setup, place)
    obstacle = (
        _heads_obstacle(config, setup, place.tensor)
        or experts_obstacle(config)
        or recurrent_obstacle(config)
        or encoder_obstacle(config)
        or split_obstacle(config, place.tensor, whole_experts=setup.expert_parallel)
        or dummy_obstacle(setup)
    )
    if obstacle is not None:
        raise Unable(obstacle)
    return _shapes(config, setup, (shard.heads, shard.kv_heads), shard.layers)


def _shapes(
    config: ModelConfig, setup: Setup, part: tuple[range, range], layers: range
) -> list[DecoderShape]:
    """Shapes of some layers. part: a rank's query heads and KV heads, of layers that have as many
    as the model says."""
    heads, kv_heads = map(len, part)
    latent = None if config.latent is None else config.latent.rank
    found = []
    rules = [config.layer(number).attention for number in layers]
    index = next(filter(None, map(index_shape, rules)), None)  # a block has room for it in each
    compressed = [rule.compressed for rule in rules if rule.compressed is not None]
    if compressed:
        plain = DecoderShape(heads, kv_heads, config.head_dim, setup.block_size)
        return [replace(plain, entries=entries_shape(spec, config.head_dim)) for spec in compressed]
    for queries, own in {(rule.query_heads, rule.kv_heads) for rule in rules}:
        if own is None:
            count, size = queries or heads, config.head_dim
            shape = DecoderShape(count, kv_heads, size, setup.block_size, latent, index)
        else:
            count = queries or config.num_heads
            shape = DecoderShape(count, own.count, own.size, setup.block_size)
        found.append(shape)
    return found


def _heads_obstacle(config: ModelConfig, setup: Setup, tensor: int) -> str | None:
    """Returns which heads the kernels can't compute on one of the tensor-parallel ranks, or None:
    all ranks must come to the same answer."""
    obstacles = (
        shape.obstacle()
        for part in head_ranges(config, tensor)
        for shape in _shapes(config, setup, part, range(config.num_layers))
    )
    return next((each for each in obstacles if each is not None), None)


def dummy_obstacle(setup: Setup) -> str | None:
    """Returns why the weights can't be loaded, or None: matrices are packed from files only."""
    return None if setup.load_format == "auto" else f"load_format is {setup.load_format}"


_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass
class CPUEncoderDecoder:
    """Adapts two programs to the interface `Forward`."""

    stores: Forward
    """Stores the keys and values of an encoder's rows."""
    decoder: Forward
    encoder_rows: int
    vocab: int
    shown: ShownHeads | None = None
    """The output of `crossing`; None: it isn't known which heads follow the sound."""

    @property
    def layers_done(self) -> int:
        return sum(each.layers_done for each in self._forwards)

    @property
    def _forwards(self) -> tuple[Forward, ...]:
        shown = self.shown
        return self.stores, self.decoder, *(() if shown is None else shown.forwards)

    def cancel(self) -> None:
        for each in self._forwards:
            each.cancel()

    def kv_blocks(self) -> list[np.ndarray]:
        return self.decoder.kv_blocks()

    def logits(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        """Logits as Forward has them. Those of an encoder's rows are zeros."""
        division = Division.of(batch.starts, batch.counts, self.encoder_rows)
        if len(division.decoded) < len(batch.tokens):
            self.stores.logits(_encoded(batch, division), _NO_ROWS)
        places, found = division.find(rows)
        logits = np.zeros((len(rows), self.vocab), dtype=np.float32)
        if len(division.decoded):
            decoded = self.decoder.logits(decoded_part(batch, division, self.encoder_rows), found)
            logits[places] = decoded
        return logits

    def crossing(self, batch: Batch) -> Crossing:
        """Computes every row of a batch, and shows its attention to the encoder's output (see
        Crosses)."""
        if self.shown is None:
            raise ValueError("no heads are shown")
        division = Division.of(batch.starts, batch.counts, self.encoder_rows)
        decoded = len(division.decoded)
        keys = self.shown.keys(_encoded(batch, division) if decoded < len(batch.tokens) else None)
        rows = decoded_part(batch, division, self.encoder_rows) if decoded else None
        return Crossing(self.shown.queries(rows), keys)


def _encoded(batch: Batch, division: Division) -> Batch:
    """The part of it that is stored."""
    counts = batch.counts - division.counts
    having = counts.nonzero()[0].tolist()
    mine = np.ones(len(batch.tokens), dtype=bool)
    mine[division.decoded] = False
    media = batch.media
    if media is not None:
        # Which of the encoders' rows each row of the batch is.
        numbers = np.cumsum(mine) - 1
        media = BatchMedia(rows=numbers[media.rows], embeddings=media.embeddings)
    return Batch(
        tokens=batch.tokens[mine],
        tables=[batch.tables[at] for at in having],
        starts=batch.starts[having],
        counts=counts[having],
        media=media,
    )


# What of a model's layers the CPU kernels can't compute.


def experts_obstacle(config: ModelConfig) -> str | None:
    """Returns which mixtures of experts the kernels can't compute, or None."""
    for layer in config.layers:
        experts = layer.feed_forward.experts
        if experts is not None and (experts.count > 1024 or experts.active > 64):
            return f"{experts.active} of {experts.count} experts; at most 64 of 1024 are supported"
        if experts is not None and experts.group_best > 2:
            return f"groups are scored by {experts.group_best} experts; 1 and 2 are possible"
        if experts is not None and experts.weighs_input and layer.feed_forward.bias:
            return "experts whose inputs are weighed have biases"
        if experts is not None and experts.latent and layer.halves != "feed_forward":
            return "experts over latents stand in a layer with attention"
        if experts is not None and experts.latent and experts.shared_gate:
            return "experts over latents stand beside an expert with a gate"
        if experts is not None and experts.latent > config.hidden_size:
            return f"experts' latents have {experts.latent} numbers, more than the hidden size"
    return None


def recurrent_obstacle(config: ModelConfig) -> str | None:
    """Returns which recurrent layers the kernels can't compute, or None."""
    for spec in {layer.recurrent for layer in config.layers}:
        if spec is not None and spec.kernel > MAX_KERNEL:
            return f"a convolution of {spec.kernel} tokens; at most {MAX_KERNEL} are possible"
        heads, size = 1, 1
        if isinstance(spec, GatedDeltaSpec):
            heads, size = spec.value_heads, spec.key_dim
        elif isinstance(spec, Mamba2Spec):
            heads, size = spec.heads, spec.state
        elif isinstance(spec, Mamba1Spec):
            size = spec.state
        if heads > MAX_HEADS or size > MAX_KEY_DIM:
            return (
                f"recurrent layers have {heads} heads with {size} numbers of the state for each"
                f" value; at most {MAX_HEADS} with {MAX_KEY_DIM} are possible"
            )
    return None
