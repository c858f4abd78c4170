"""The C interface's structs, with the same fields as in csrc/types.h."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_void_p


class PkMatrix(ctypes.Structure):
    """Packed weights. `tiles` is 64-byte aligned; `bias` is float32 or null."""

    _fields_ = (
        ("kind", c_int32),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("reserved", c_int32),
        ("tiles", c_void_p),
        ("bias", c_void_p),
    )


class PkLayer(ctypes.Structure):
    """The weights of one decoder layer, and its part of the KV cache."""

    _fields_ = (
        ("query", PkMatrix),
        ("key", PkMatrix),
        ("value", PkMatrix),
        ("output", PkMatrix),
        ("gate", PkMatrix),
        ("up", PkMatrix),
        ("down", PkMatrix),
        ("attention_norm", c_void_p),
        ("feed_forward_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
    )


class PkModel(ctypes.Structure):
    """Everything that a forward pass reads of a model."""

    _fields_ = (
        ("hidden", c_int32),
        ("inner", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("num_layers", c_int32),
        ("vocab", c_int32),
        ("block_size", c_int32),
        ("cache", c_int32),
        ("threads", c_int32),
        ("eps", c_float),
        ("reserved", c_float),
        ("layers", ctypes.POINTER(PkLayer)),
        ("embedding", PkMatrix),
        ("head", PkMatrix),
        ("norm", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
    )


class PkBatch(ctypes.Structure):
    """One step."""

    _fields_ = (
        ("rows", c_int32),
        ("sequences", c_int32),
        ("num_wanted", c_int32),
        ("reserved", c_int32),
        ("tokens", c_void_p),
        ("first_row", c_void_p),
        ("starts", c_void_p),
        ("tables", c_void_p),
        ("first_block", c_void_p),
        ("wanted", c_void_p),
        ("logits", c_void_p),
        ("layers_done", c_void_p),
        ("cancelled", c_void_p),
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
