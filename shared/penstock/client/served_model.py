"""The served model, as engine cores' welcomes describe it: its tokenizer, its chat template, its
limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.errors import UnsupportedModel
from penstock.model.media_facts import MediaFacts
from penstock.process import logs
from penstock.process.start_phases import START
from penstock.protocol.to_frontend import Limits, Welcome, text_of
from penstock.text.read_ahead import tokenizer_of
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
        START.passed("engine core")
        tokenizer = tokenizer_of(
            frames[0], add_bos=welcome.add_bos, bos_token_id=welcome.generation.bos_token_id
        )
        START.passed("tokenizer")
        START.done()
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


log = logs.get(__name__)


class ServedModel:
    """welcome: of the engine core that speaks for all, with limits that all of them keep.
    text: its tokenizer and template.  Both None before the first.

    The engine core that was started last speaks for all: so new settings (a chat template, limits)
    come with the first engine of a rolling upgrade, on every gateway alike.
    """

    def __init__(self) -> None:
        self.welcome: Welcome | None = None
        self.text: ModelText | None = None
        self._leading: Welcome | None = None

    @property
    def held(self) -> tuple[str, str, str] | None:
        """What names `text` in Hello.text; None: there is none, or it has no name."""
        if self.text is None or self._leading is None:
            return None
        return text_of(self._leading)

    def misfit(self, welcome: Welcome) -> str:
        """Returns why an engine core can't serve together with the others; empty: it can."""
        leading = self._leading
        if leading is None:
            return ""
        for field, ours, theirs in (
            ("model digest", leading.digest, welcome.digest),
            ("model name", leading.model, welcome.model),
            ("pooling", leading.pooling, welcome.pooling),
            ("pooling tasks", leading.pooling_tasks, welcome.pooling_tasks),
            ("seed", leading.seed, welcome.seed),
            ("max_lora_rank", leading.max_lora_rank, welcome.max_lora_rank),
        ):
            if ours != theirs:
                return f"its {field} is {theirs!r}, the other engine cores' is {ours!r}"
        return ""

    def needs_text(self, welcome: Welcome, frames: list[bytes], others: Sequence[Welcome]) -> bool:
        """Whether `adopt` is to be given what `ModelText.from_welcome` makes of these."""
        text, leading = self.text, self._leading
        if text is None or leading is None:
            return True
        return _leads(welcome, others) and not self._has(text, leading, welcome, frames)

    def _has(
        self, text: ModelText, leading: Welcome, welcome: Welcome, frames: list[bytes]
    ) -> bool:
        """Whether `text` is the engine core's. The template may be one of the engine's settings:
        another with the same model."""
        if not frames:
            return self.held is not None and text_of(welcome) == self.held
        same = leading.digest == welcome.digest and len(frames) == 2
        return same and text.template_is(frames[1])

    def adopt(self, welcome: Welcome, text: ModelText | None, others: Sequence[Welcome]) -> None:
        """Takes an engine core in. text: its own, if that was needed when it was read: another one
        may lead by now.  others: those of the same model that are connected."""
        if self.text is None or _leads(welcome, others):
            self._leading = welcome
            if text is not None:
                self.close()
                self.text = text
        elif text is not None:
            text.close()
        self.agree([welcome, *others])

    def agree(self, connected: Sequence[Welcome]) -> None:
        """Takes the limits that hold for all connected engine cores; if none is connected, the last
        ones stay."""
        leading = self._leading
        if leading is None or not connected:
            return
        limits = common_limits([leading.limits, *(each.limits for each in connected)])
        if limits == leading.limits:
            self.welcome = leading
        else:
            self.welcome = msgspec.structs.replace(leading, limits=limits)

    def close(self) -> None:
        """Lets go of the processes that fill the template. Idempotent."""
        if self.text is not None:
            self.text.close()


def _leads(welcome: Welcome, others: Sequence[Welcome]) -> bool:
    return all(_age(welcome) >= _age(other) for other in others)


def _age(welcome: Welcome) -> tuple[int, str]:
    return welcome.created, welcome.boot


def common_limits(limits: Sequence[Limits]) -> Limits:
    """What all of them allow."""
    first, *others = limits
    if all(other == first for other in others):
        return first
    kinds = [set(each.grammar_kinds) for each in others]
    least = {
        name: min(getattr(each, name) for each in limits)
        for name in Limits.__struct_fields__
        if name != "grammar_kinds"
    }
    return Limits(
        grammar_kinds=tuple(k for k in first.grammar_kinds if all(k in kind for kind in kinds)),
        **least,
    )
