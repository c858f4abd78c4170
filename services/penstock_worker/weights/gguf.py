"""The tensors of a GGUF file, in our naming."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.families import FAMILIES
from penstock.formats.gguf import GGUFFile
from penstock.model_config import ModelConfig
from penstock_worker.weights.names import from_gguf
from penstock_worker.weights.stored import StoredTensor


def gguf_tensors(files: tuple[str, ...], config: ModelConfig) -> dict[str, StoredTensor]:
    """Returns the files' tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    found: dict[str, StoredTensor] = {}
    for path in files:
        for tensor in GGUFFile(path).tensors.values():
            name = from_gguf(tensor.name)
            if name in found:
                raise UnsupportedModel(f"{path}: the tensor {tensor.name} is in another part too")
            found[name] = StoredTensor(
                tensor.name, tensor.shape, tensor.type, tensor.data, _rearrangement(name, config)
            )
    return found


def _rearrangement(name: str, config: ModelConfig) -> partial[Tensor] | None:
    """Returns how to reorder the rows of a tensor, or None. In the files of some families, the two
    rows of a rotary pair in q and k are adjacent; our kernels pair row i with row i + head_dim /
    2."""
    if not FAMILIES[config.architecture].gguf_pairs_adjacent:
        return None
    if ".q_proj." in name:
        return partial(_halves_apart, heads=config.num_heads)
    if ".k_proj." in name:
        return partial(_halves_apart, heads=config.num_kv_heads)
    return None


def _halves_apart(rows: Tensor, heads: int) -> Tensor:
    """Reorders [heads * head_dim, ...] from adjacent pairs to pairs that are half a head apart."""
    pairs = rows.unflatten(0, (heads, rows.shape[0] // heads // 2, 2))
    return pairs.transpose(1, 2).reshape(rows.shape)
