"""Tokenizer and chat template of the served model, as they came with the engine's Welcome."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import UnsupportedModel
from penstock.model.media_facts import MediaFacts
from penstock.protocol.to_frontend import Welcome
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelText:
    """template is None for a model that has no chat template, media for one that takes none."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    media: MediaFacts | None = None

    @classmethod
    def from_welcome(cls, welcome: Welcome, frames: list[bytes]) -> ModelText:
        """Raises UnsupportedModel when the frames are not what Welcome promises."""
        if len(frames) != 2:
            raise UnsupportedModel(
                f"the engine's welcome came with {len(frames)} frames, not 2 "
                "(tokenizer.json and the chat template)"
            )
        tokenizer = Tokenizer.from_bytes(
            frames[0], add_bos=welcome.add_bos, bos_token_id=welcome.generation.bos_token_id
        )
        tokenizer.prepare()
        source = frames[1].decode()
        if not source:
            return cls(tokenizer, None, welcome.media)
        template = ChatTemplate(source, tokenizer, generation=welcome.generation)
        return cls(tokenizer, template, welcome.media)

    def close(self) -> None:
        """Lets go of the processes that fill the template. Idempotent."""
        if self.template is not None:
            self.template.close()

    def template_is(self, frame: bytes) -> bool:
        """Whether a welcome's second frame holds this same template."""
        source = self.template.source if self.template is not None else ""
        return source == frame.decode()
