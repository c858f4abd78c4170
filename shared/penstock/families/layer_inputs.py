"""The inputs of each layer's own that Gemma 3n and 4 have."""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.formats.fields import Fields
from penstock.model.layer_spec import PerLayerInputsSpec

SIZE, ROWS = "hidden_size_per_layer_input", "vocab_size_per_layer_input"


def read_layer_inputs(fields: Fields, vocab_size: int) -> PerLayerInputsSpec | None:
    """Reads config.json; None: there are none. Raises UnsupportedModel."""
    # A null says that there are none.
    stated = SIZE not in fields.values or fields.values[SIZE] is not None
    size, rows = fields.integer(SIZE, 256 if stated else 0), fields.integer(ROWS, vocab_size)
    return layer_inputs(size, rows, fields.where)


def layer_inputs(size: int, rows: int, where: str) -> PerLayerInputsSpec | None:
    """size: 0 if there are none. rows: of their table."""
    if not 0 <= size <= bounds.MAX_LAYER_INPUT or not 1 <= rows <= bounds.MAX_ROWS:
        raise UnsupportedModel(
            f"{where}: each layer's own input has {size} numbers, of a table of {rows} rows; 0 to "
            f"{bounds.MAX_LAYER_INPUT} and 1 to {bounds.MAX_ROWS} are allowed"
        )
    return PerLayerInputsSpec(size=size, vocab_size=rows) if size else None
