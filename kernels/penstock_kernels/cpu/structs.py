"""The C interface's structs, with the same fields as in csrc/*_types.h."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_uint64, c_void_p


class PkMatrix(ctypes.Structure):
    """Packed weights. `tiles` is 64-byte aligned; `bias` is float32 or null."""

    _fields_ = (
        ("kind", c_int32),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("factor", c_float),
        ("tiles", c_void_p),
        ("bias", c_void_p),
    )


class PkNorm(ctypes.Structure):
    """A normalisation."""

    _fields_ = (("kind", c_int32), ("eps", c_float), ("weight", c_void_p), ("bias", c_void_p))


class PkEntries(ctypes.Structure):
    """Entries that stand for several tokens each."""

    _fields_ = (
        ("rate", c_int32),
        ("series", c_int32),
        ("most", c_int32),
        ("index_heads", c_int32),
        ("index_dim", c_int32),
        ("reserved", c_int32),
        ("bias", c_void_p),
        ("index_bias", c_void_p),
        ("norm", PkNorm),
        ("index_norm", PkNorm),
        ("kept", c_void_p),
        ("block", c_int64),
    )


class PkAttention(ctypes.Structure):
    """Attention of a layer, and its part of the KV cache."""

    _fields_ = (
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("value_dim", c_int32),
        ("rotary_dims", c_int32),
        ("window", c_int32),
        ("chunk", c_int32),
        ("both_ways", c_int32),
        ("causal", c_int32),
        ("group", c_int32),
        ("through", c_int32),
        ("most", c_int32),
        ("index_heads", c_int32),
        ("index_dim", c_int32),
        ("block", c_int32),
        ("local", c_int32),
        ("norms_behind", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("sinks", c_void_p),
        ("query_factors", c_void_p),
        ("axes", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_block", c_int64),
        ("value_block", c_int64),
        ("biases", c_void_p),
        ("biases_width", c_int32),
        ("biases_middle", c_int32),
        ("distance_keys", c_void_p),
        ("distance_queries", c_void_p),
        ("entries", ctypes.POINTER(PkEntries)),
    )


class PkExperts(ctypes.Structure):
    """A mixture of experts."""

    _fields_ = (
        ("count", c_int32),
        ("active", c_int32),
        ("groups", c_int32),
        ("active_groups", c_int32),
        ("group_best", c_int32),
        ("scoring", c_int32),
        ("normalised", c_int32),
        ("weighs_input", c_int32),
        ("scale", c_float),
        ("sum_floor", c_float),
        ("nearness", c_float),
        ("correction", c_void_p),
        ("gates", ctypes.POINTER(PkMatrix)),
        ("ups", ctypes.POINTER(PkMatrix)),
        ("downs", ctypes.POINTER(PkMatrix)),
        ("scales", c_void_p),
        ("by_token", c_void_p),
        ("tokens", c_int64),
    )


class PkMixing(ctypes.Structure):
    """Several residuals that both halves of each layer mix."""

    _fields_ = (
        ("count", c_int32),
        ("rounds", c_int32),
        ("eps", c_float),
        ("norm_eps", c_float),
        ("product", c_void_p),
        ("base", c_void_p),
        ("scales", c_void_p),
    )


class PkStreams(ctypes.Structure):
    """Several residuals."""

    _fields_ = (
        ("count", c_int32),
        ("active", c_int32),
        ("stride", c_int32),
        ("reserved", c_int32),
        ("router", c_void_p),
        ("prediction", c_void_p),
        ("correction", c_void_p),
        ("output_scale", c_void_p),
    )


class PkByHead(ctypes.Structure):
    """A product of its own for each head."""

    _fields_ = (
        ("count", c_int32),
        ("source_stride", c_int32),
        ("source_first", c_int32),
        ("target_stride", c_int32),
        ("target_first", c_int32),
        ("reserved", c_int32),
        ("matrices", ctypes.POINTER(PkMatrix)),
        ("query_factors", c_void_p),
    )


class PkRecurrent(ctypes.Structure):
    """What stands in the attention's place in a recurrent layer."""

    _fields_ = (
        ("kind", c_int32),
        ("kernel", c_int32),
        ("channels", c_int32),
        ("width", c_int32),
        ("key_heads", c_int32),
        ("heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("tiled", c_int32),
        ("norm_groups", c_int32),
        ("first", c_int32),
        ("keys", c_int32),
        ("values", c_int32),
        ("gate", c_int32),
        ("strength", c_int32),
        ("time", c_int32),
        ("by_channel", c_int32),
        ("logistic_gate", c_int32),
        ("least_step", c_float),
        ("most_step", c_float),
        ("strongest", c_float),
        ("norm_eps", c_float),
        ("decay_bound", c_float),
        ("state", c_int64),
        ("last", c_int64),
        ("conv", c_void_p),
        ("conv_bias", c_void_p),
        ("rate", c_void_p),
        ("time_bias", c_void_p),
        ("skip", c_void_p),
        ("norm", c_void_p),
    )


class PkPhase(ctypes.Structure):
    """What all threads do between two waits; `kind` says which fields are read."""

    _fields_ = (
        ("kind", c_int32),
        ("source", c_int32),
        ("target", c_int32),
        ("width", c_int32),
        ("forms", c_int32),
        ("waits", c_int32),
        ("ends_layer", c_int32),
        ("whole", c_int32),
        ("adds", c_int32),
        ("activation", c_int32),
        ("weighed", c_int32),
        ("part", c_int32),
        ("first", c_int32),
        ("first_key", c_int32),
        ("key_width", c_int32),
        ("beside", c_int32),
        ("gates", c_int32),
        ("low_rank", c_int32),
        ("only_wanted", c_int32),
        ("soft_gates", c_int32),
        ("columns", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("limit", c_float),
        ("gate_limit", c_float),
        ("xielu", c_float * 4),
        ("norm", PkNorm),
        ("other_norm", PkNorm),
        ("third_norm", PkNorm),
        ("attention", ctypes.POINTER(PkAttention)),
        ("experts", ctypes.POINTER(PkExperts)),
        ("by_head", ctypes.POINTER(PkByHead)),
        ("streams", ctypes.POINTER(PkStreams)),
        ("recurrent", ctypes.POINTER(PkRecurrent)),
        ("mixing", ctypes.POINTER(PkMixing)),
        ("matrices", PkMatrix * 3),
    )


NUM_BUFFERS = 10

PkExchange = ctypes.CFUNCTYPE(c_int32, c_int32, c_void_p, c_int32, c_int32, c_void_p)
"""(phase, floats, rows, stride, places) -> 0, or another number to give the step up.
places: null, or where the results of each expert begin, [experts + 1] int32."""


class PkProgram(ctypes.Structure):
    """Everything that a forward pass reads of a model."""

    _fields_ = (
        ("num_phases", c_int32),
        ("vocab", c_int32),
        ("block_size", c_int32),
        ("cache", c_int32),
        ("threads", c_int32),
        ("outputs", c_int32),
        ("low_rank", c_int32),
        ("low_targets", c_int32),
        ("two_parts", c_int32),
        ("widths", c_int32 * NUM_BUFFERS),
        ("phases", ctypes.POINTER(PkPhase)),
        ("exchange", PkExchange),
        ("state_numbers", c_int64),
        ("last_numbers", c_int64),
    )


class PkStates(ctypes.Structure):
    """The states of a step's sequences in recurrent layers."""

    _fields_ = (
        ("pieces", c_int32),
        ("num_parts", c_int32),
        ("live", c_void_p),
        ("last", c_void_p),
        ("slots", c_void_p),
        ("again", c_void_p),
        ("first_checkpoint", c_void_p),
        ("behind", c_void_p),
        ("blocks", c_void_p),
        ("parts", c_void_p),
        ("part_bytes", c_void_p),
        ("block_bytes", c_int64),
    )


class PkLowRank(ctypes.Structure):
    """What an adapter does to a product."""

    _fields_ = (
        ("down", PkMatrix),
        ("up", PkMatrix),
        ("whole", PkMatrix),
        ("factors", c_void_p),
        ("added", c_void_p),
    )


class PkRun(ctypes.Structure):
    """Neighbouring rows with the same adapter."""

    _fields_ = (("first", c_int32), ("rows", c_int32), ("adapter", c_void_p))


class PkBatch(ctypes.Structure):
    """The library's struct of a step."""

    _fields_ = (
        ("rows", c_int32),
        ("sequences", c_int32),
        ("num_wanted", c_int32),
        ("threads", c_int32),
        ("num_taken", c_int32),
        ("taken_width", c_int32),
        ("tokens", c_void_p),
        ("first_row", c_void_p),
        ("starts", c_void_p),
        ("tables", c_void_p),
        ("first_block", c_void_p),
        ("wanted", c_void_p),
        ("types", c_void_p),
        ("taken_rows", c_void_p),
        ("turns", c_void_p),
        ("last_seen", c_void_p),
        ("between", c_void_p),
        ("taken", c_void_p),
        ("logits", c_void_p),
        ("likeliest", c_void_p),
        ("layers_done", c_void_p),
        ("cancelled", c_void_p),
        ("states", ctypes.POINTER(PkStates)),
        ("lost", c_void_p),
        ("runs", c_void_p),
        ("run_of", c_void_p),
        ("num_runs", c_int64),
        ("ticks", c_void_p),
    )


class PkSampling(ctypes.Structure):
    """Rows whose tokens are to be sampled."""

    _fields_ = (
        ("rows", c_int32),
        ("vocab", c_int32),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("logits", c_void_p),
        ("draws", c_void_p),
        ("held_back", c_void_p),
        ("edits", c_void_p),
        ("biased_ids", c_void_p),
        ("biases", c_void_p),
        ("seen_ids", c_void_p),
        ("seen_counts", c_void_p),
        ("tokens", c_void_p),
        ("logprobs", c_void_p),
        ("top_ids", c_void_p),
        ("top_logprobs", c_void_p),
    )


class PkKept(ctypes.Structure):
    """A block's contents that are written to a file: see csrc/interface.h."""

    _fields_ = (
        ("fd", c_int32),
        ("key_bytes", c_int32),
        ("key", c_void_p),
        ("header", c_void_p),
        ("payload", c_void_p),
        ("header_bytes", c_uint64),
        ("payload_bytes", c_uint64),
        ("offset", c_int64),
    )
