"""What the layers of Gemma 3n and 4 have in common: inputs of each layer's own, and layers that
read the keys and values of an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.formats.fields import Fields
from penstock.model.layer_spec import PerLayerInputsSpec

SIZE, ROWS = "hidden_size_per_layer_input", "vocab_size_per_layer_input"


def read_layer_inputs(
    fields: Fields, vocab_size: int, padding: int | None = None
) -> PerLayerInputsSpec | None:
    """Reads config.json; None: there are none. padding: the id that stands for media; None: that of
    padding. Raises UnsupportedModel."""
    # A null says that there are none.
    stated = SIZE not in fields.values or fields.values[SIZE] is not None
    size, rows = fields.integer(SIZE, 256 if stated else 0), fields.integer(ROWS, vocab_size)
    if padding is None:
        padding = fields.optional_integer("pad_token_id") or 0
    return layer_inputs(size, rows, fields.where, padding)


def layer_inputs(size: int, rows: int, where: str, padding: int = 0) -> PerLayerInputsSpec | None:
    """size: 0 if there are none. rows: of their table. padding: the id that stands for media."""
    if not 0 <= size <= bounds.MAX_LAYER_INPUT or not 1 <= rows <= bounds.MAX_ROWS:
        raise UnsupportedModel(
            f"{where}: each layer's own input has {size} numbers, of a table of {rows} rows; 0 to "
            f"{bounds.MAX_LAYER_INPUT} and 1 to {bounds.MAX_ROWS} are allowed"
        )
    if not 0 <= padding < rows:
        padding = 0
    return PerLayerInputsSpec(size=size, vocab_size=rows, media_id=padding) if size else None


def kv_sources(kinds: Sequence[str], shared: int, where: str) -> list[int | None]:
    """Returns for each layer the one whose keys and values it reads; None if it has its own. Each
    of the last `shared` layers reads those of the last layer of its kind before them. Raises
    UnsupportedModel."""
    first = len(kinds) - shared
    if not 0 <= shared < len(kinds):
        raise UnsupportedModel(
            f"{where}: num_kv_shared_layers is {shared}; 0 to {len(kinds) - 1} are allowed"
        )
    last = {kind: number for number, kind in enumerate(kinds[:first])}
    missing = sorted(set(kinds[first:]) - set(last))
    if missing:
        raise UnsupportedModel(
            f"{where}: the last {shared} layers read the keys and values of earlier ones, and no "
            f"earlier one is of the kind {missing[0]}"
        )
    return [None if number < first else last[kind] for number, kind in enumerate(kinds)]
