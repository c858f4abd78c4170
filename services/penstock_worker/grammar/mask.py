"""What is known about a slot's next token when its logits are there: a mask, a deferral or an
error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.protocol.common import ErrorCode
from penstock_worker.sampler.interface import SampledToken

NO_TOKEN = "the model gave no finite logit to any token that the grammar allows"


@dataclass(frozen=True)
class Mask:
    """allowed: [vocab] bool; None where it is late, or there is an error."""

    allowed: np.ndarray | None = None
    error: str | None = None
    error_code: ErrorCode = "complex_grammar"
    """The code that goes with the error."""

    def judge(self, choice: SampledToken) -> SampledToken:
        """Returns what becomes of the sampler's choice for the row."""
        if self.error is not None:
            return SampledToken(error=self.error, error_code=self.error_code)
        if self.allowed is None:
            return SampledToken(deferred=True)
        if choice.token is not None and not self.allowed[choice.token]:
            return SampledToken(error=NO_TOKEN)
        return choice
