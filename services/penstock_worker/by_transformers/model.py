"""A model of transformers' as a step needs it: rows in, hidden vectors or logits out."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock_kernels.reference.tiling import padded_rows
from penstock_worker.by_transformers.paged import PagedStep, computing
from penstock_worker.by_transformers.rows import RowInvariant


class LibraryModel:
    """Read-only after it is made; may be used from several threads at once."""

    def __init__(self, model: Any, *, headless: bool) -> None:
        """`headless`: its layers alone, whose last norm is a part of them. Raises UnsupportedModel
        for a class that can't be told its rows' positions."""
        self._model = model
        self._headless = headless
        known = inspect.signature(model.forward).parameters
        if "position_ids" not in known:
            raise UnsupportedModel(
                f"{type(model).__name__} of transformers counts positions itself, so sequences "
                "can't be computed together by it"
            )
        self._chooses = "logits_to_keep" in known

    def outputs(self, tokens: Tensor, positions: Tensor, step: PagedStep, rows: Tensor) -> Tensor:
        """Computes all of `tokens` at `positions`, each [count] int64; returns what comes of some
        `rows`, [n] int64: logits, [n, vocab] float32, or hidden vectors, [n, hidden].

        The tensors that the model's code sees have whole tiles of rows, and the last one is always
        padding: what torch computes at the end of a tensor may have other bits.
        """
        count, wanted = len(tokens), len(rows)
        missing = padded_rows(count + 1) - count
        kept = torch.nn.functional.pad(rows, (0, padded_rows(wanted + 1) - wanted))
        # In a rehearsal transformers makes masks, and takes a jump of positions for a new sequence.
        behind = torch.arange(missing) + count if step.rehearsal else torch.zeros(missing)
        chosen: dict[str, Any] = {}
        if self._chooses and not self._headless:
            chosen["logits_to_keep"] = kept
        with computing(step), RowInvariant():
            given = self._model(
                input_ids=torch.nn.functional.pad(tokens, (0, missing))[None],
                position_ids=torch.cat((positions, behind.to(positions.dtype)))[None],
                attention_mask=None,
                use_cache=False,
                return_dict=True,
                **chosen,
            )
        found: Tensor = given.last_hidden_state if self._headless else given.logits
        of_rows = found[0] if chosen else found[0][kept]
        return of_rows[:wanted] if self._headless else of_rows[:wanted].float()
