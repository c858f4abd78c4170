"""The attention of one step on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.attention import rope_write
from penstock_kernels.triton.attention.paged import Variant, paged_attention
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan
from penstock_worker.attention.encoded import NOTHING_ENCODED, EncodedAttention
from penstock_worker.attention.flash_attention import FlashStep
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    CacheShape,
    HeadNorms,
    Rotation,
    ScoreRule,
    SectionedRotation,
)
from penstock_worker.attention.triton_encoded import EncodedKeys, OfLayer


class TritonStep:
    """The attention of one step."""

    def __init__(
        self,
        shape: CacheShape,
        of_layer: OfLayer,
        groups: list[tuple[Tensor, list[DeviceAttentionPlan]]],
        encoder_rows: int = 0,
        flash: FlashStep | None = None,
    ) -> None:
        """`encoder_rows`: see TritonAttention. `groups` has for each KV group [rows] int32 on the
        device, where the step's keys and values are stored, -1 for nowhere; and its attention's
        plan for each kind of heads. `flash`: what computes long chunks; None: the plans do."""
        self._shape = shape
        self._of_layer = of_layer
        self._groups = groups
        self._encoder_rows = encoder_rows
        self._flash = flash

    @property
    def encoded(self) -> EncodedAttention:
        """Attention of the same rows to an encoder's output."""
        if not self._encoder_rows:
            return NOTHING_ENCODED
        slots, (plan, *_) = self._groups[0]
        return EncodedKeys(self._of_layer, plan, slots, self._encoder_rows)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
        rule: ScoreRule = PLAIN_RULE,
    ) -> Tensor:
        shape = self._shape
        (group, _), own = shape.place(layer), shape.value_in_key
        cache = self._of_layer(layer)
        keys, values, kind, scales = cache
        slots, plans = self._groups[group]
        if len(slots) < len(query):
            slots = torch.nn.functional.pad(slots, (0, len(query) - len(slots)), value=-1)
        query = rope_write.rope_write(
            query,
            key,
            value if own is None else None,
            rotary_tables(rotation),
            slots,
            keys,
            values,
            norms=None
            if norms is None
            else rope_write.QueryKeyNorms(norms.query, norms.key, norms.eps),
            scales=scales,
        )
        scale = query.shape[2] ** -0.5 if rule.scale is None else rule.scale
        # A decoder's tokens are the chunk of positions after the encoder's.
        variant = Variant(rule.window or 0, rule.soft_cap or 0.0, rule.chunk or self._encoder_rows)
        turning = 0 if own is None else query.shape[2] - own

        def attended(out: Tensor | None, plan: DeviceAttentionPlan) -> Tensor:
            return paged_attention(
                query,
                keys,
                values,
                plan,
                scale,
                variant=variant,
                scales=scales,
                sinks=rule.sinks,
                turning=turning,
                out=out,
            )

        plan = plans[kind].causal() if rule.causal else plans[kind]
        if self._flash is not None and self._flash.serves(layer):
            return self._flash.attend(query, cache, plan, scale, rule, attended)
        return attended(None, plan)


def rotary_tables(rotation: Rotation | None) -> rope_write.RotaryTables | None:
    """Returns a rotation as the kernels take it."""
    if rotation is None:
        return None
    if isinstance(rotation, SectionedRotation):
        rotation = rotation.by_row
    return rope_write.RotaryTables(
        rotation.cos, rotation.sin, rotation.positions, rotation.query_factors
    )
