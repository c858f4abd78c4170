"""What a GGUF decoder's work costs at least: bytes to read and multiply-adds to make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from loadtest.roofline.probe import Limits
from penstock.formats.gguf import GGUFFile, GGUFTensor
from penstock.model.layer_spec import LayerSpec
from penstock.prepare.gguf_config import read_config

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class ModelCost:
    """What one step of one token costs, as the file stores the weights.

    layer_bytes, layer_macs: of all layers' matrices, of experts as many as serve one token.
    head_bytes, head_macs: of the output head, which is the embedding where the two are tied.
    kv_bytes: keys and values of one token in bfloat16, in the layers that see all tokens;
    window_kv_bytes: in those that see the last `window`.  expert_bytes: of all layers' experts, of
    which expert_share serve one token.  Attention's own multiply-adds, norms and the embedding's
    one row are left out.
    """

    layer_bytes: int
    layer_macs: int
    head_bytes: int
    head_macs: int
    kv_bytes: int
    window_kv_bytes: int = 0
    window: int = 0
    expert_bytes: int = 0
    expert_share: float = 1.0

    @property
    def weight_bytes(self) -> int:
        """Read for a step of one token."""
        return self.layer_bytes + self.head_bytes

    def read_bytes(self, tokens: int) -> float:
        """Bytes of weights that a step of so many tokens reads, among which a router spreads
        experts evenly."""
        share = self.expert_share
        more = (1 - (1 - share) ** tokens) - share
        return self.weight_bytes + more * self.expert_bytes

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "weight_bytes": self.weight_bytes}

    def prefill_seconds(self, tokens: int, sequences: int, limits: Limits) -> float | None:
        """`tokens` tokens of all sequences; the head for each one's last.  None where no peak of
        operations was measured: reading alone would be no limit to speak of."""
        macs = tokens * self.layer_macs + sequences * self.head_macs
        return _longer(self.read_bytes(tokens), macs, limits) if limits.ops_per_s else None

    def decode_seconds(self, context: float, sequences: int, limits: Limits) -> float:
        """One step of `sequences` sequences with `context` tokens each in the cache.  Reading
        alone where no peak of operations was measured."""
        kv = context * self.kv_bytes + min(context, self.window) * self.window_kv_bytes
        size = self.read_bytes(sequences) + sequences * kv
        return _longer(size, sequences * (self.layer_macs + self.head_macs), limits)


def _longer(size: float, macs: float, limits: Limits) -> float:
    reading = size / limits.read_bytes_per_s
    return max(reading, 2 * macs / limits.ops_per_s) if limits.ops_per_s else reading


def model_cost(path: Path) -> ModelCost:
    """Raises what GGUFFile and read_config raise, KeyError for a file that is no decoder's."""
    file = GGUFFile(path)
    config = read_config(file)
    matrices, experts = [], []
    for name, tensor in file.tensors.items():
        if name.startswith("blk.") and len(tensor.shape) > 1:
            (experts if name.endswith("_exps.weight") else matrices).append(tensor)
    head = file.tensors[_HEAD] if _HEAD in file.tensors else file.tensors[_EMBEDDING]
    layers = [config.layer(number) for number in range(config.num_layers)]
    windows = [layer.attention.window for layer in layers]
    kv_bytes = 2 * 2 * config.num_kv_heads * config.head_dim
    share = _active_share(layers)
    return ModelCost(
        layer_bytes=_bytes(matrices) + int(share * _bytes(experts)),
        layer_macs=_macs(matrices) + int(share * _macs(experts)),
        head_bytes=head.data.nbytes,
        head_macs=prod(head.shape),
        kv_bytes=kv_bytes * windows.count(None),
        window_kv_bytes=kv_bytes * (len(windows) - windows.count(None)),
        window=max((window for window in windows if window), default=0),
        expert_bytes=_bytes(experts),
        expert_share=share,
    )


def _active_share(layers: Sequence[LayerSpec]) -> float:
    found = [layer.feed_forward.experts for layer in layers if layer.feed_forward.experts]
    return found[0].active / found[0].count if found else 1.0


def _bytes(tensors: Sequence[GGUFTensor]) -> int:
    return sum(tensor.data.nbytes for tensor in tensors)


def _macs(tensors: Sequence[GGUFTensor]) -> int:
    return sum(prod(tensor.shape) for tensor in tensors)
