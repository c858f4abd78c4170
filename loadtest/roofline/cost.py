"""What a GGUF decoder's work costs at least: bytes to read and multiply-adds to make."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from loadtest.roofline.probe import Limits
from penstock.formats.gguf import GGUFFile

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class ModelCost:
    """Of one step of one token, as the file stores the weights.

    layer_bytes, layer_macs: of all layers' matrices.  head_bytes, head_macs: of the output head,
    which is the embedding where the two are tied.  kv_bytes: keys and values of one token in
    bfloat16.  Attention's own multiply-adds, norms and the embedding's one row are left out.
    """

    layer_bytes: int
    layer_macs: int
    head_bytes: int
    head_macs: int
    kv_bytes: int

    @property
    def weight_bytes(self) -> int:
        """Read for each step, whatever the batch."""
        return self.layer_bytes + self.head_bytes

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "weight_bytes": self.weight_bytes}

    def prefill_seconds(self, tokens: int, sequences: int, limits: Limits) -> float | None:
        """`tokens` tokens of all sequences; the head for each one's last.  None where no peak of
        operations was measured: reading alone would be no limit to speak of."""
        macs = tokens * self.layer_macs + sequences * self.head_macs
        return _longer(self.weight_bytes, macs, limits) if limits.ops_per_s else None

    def decode_seconds(self, context: float, sequences: int, limits: Limits) -> float:
        """One step of `sequences` sequences with `context` tokens each in the cache.  Reading
        alone where no peak of operations was measured."""
        size = self.weight_bytes + sequences * context * self.kv_bytes
        return _longer(size, sequences * (self.layer_macs + self.head_macs), limits)


def _longer(size: float, macs: float, limits: Limits) -> float:
    reading = size / limits.read_bytes_per_s
    return max(reading, 2 * macs / limits.ops_per_s) if limits.ops_per_s else reading


def model_cost(path: Path) -> ModelCost:
    """Raises what GGUFFile raises, KeyError for a file that is no decoder's."""
    file = GGUFFile(path)
    tensors, metadata = file.tensors, file.metadata
    layers = [t for name, t in tensors.items() if name.startswith("blk.") and len(t.shape) == 2]
    head = tensors[_HEAD] if _HEAD in tensors else tensors[_EMBEDDING]
    family = metadata["general.architecture"]
    heads = metadata[f"{family}.attention.head_count"]
    kv_heads = metadata.get(f"{family}.attention.head_count_kv", heads)
    width = metadata.get(
        f"{family}.attention.key_length", metadata[f"{family}.embedding_length"] // heads
    )
    return ModelCost(
        layer_bytes=sum(tensor.data.nbytes for tensor in layers),
        layer_macs=sum(prod(tensor.shape) for tensor in layers),
        head_bytes=head.data.nbytes,
        head_macs=prod(head.shape),
        kv_bytes=2 * 2 * kv_heads * width * metadata[f"{family}.block_count"],
    )
