"""What a request says that its output will resemble."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.protocol.from_frontend import MAX_PREDICTION_TOKENS
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.tokenising import MAX_CHARACTERS_PER_TOKEN, off_the_loop


class PredictionPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of it."""

    text: str
    type: Literal["text"] = "text"


class Prediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that the output is expected to resemble, as a file of which little is to be changed.
    It makes an output quicker where it is right, and changes nothing where it is wrong."""

    content: str | list[PredictionPart]
    type: Literal["content"] = "content"

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


async def predicted_ids(prediction: Prediction | None, engine: EngineInfo) -> list[int]:
    """The token ids to draft from. What is more than an output can have is left out."""
    if prediction is None:
        return []
    most = min(MAX_PREDICTION_TOKENS, engine.welcome.limits.max_model_len)
    text = prediction.text[: most * MAX_CHARACTERS_PER_TOKEN]
    tokenizer = engine.text.tokenizer
    ids = await off_the_loop(
        lambda: tokenizer.encode(text, add_special=False, first=most), len(text)
    )
    return ids[:most]
