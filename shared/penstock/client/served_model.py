"""The one model that all engine cores of a front end serve."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.client.model_text import ModelText
from penstock.process import logs
from penstock.protocol.to_frontend import Limits, Welcome

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

    def misfit(self, welcome: Welcome) -> str:
        """Why an engine core can't serve beside the others; empty: it can."""
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

    def adopt(self, welcome: Welcome, frames: list[bytes], others: Sequence[Welcome]) -> None:
        """Takes an engine core in. others: those of the same model that are connected.

        Raises UnsupportedModel where its frames are not what Welcome promises.
        """
        leads = all(_age(welcome) >= _age(other) for other in others)
        if self.text is None or leads:
            self._take_text(welcome, frames)
            self._leading = welcome
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

    def _take_text(self, welcome: Welcome, frames: list[bytes]) -> None:
        text, leading = self.text, self._leading
        same = leading is not None and leading.digest == welcome.digest
        # The template may be one of the engine's settings: another with the same model.
        if same and text is not None and len(frames) == 2 and text.template_is(frames[1]):
            return
        self.text = ModelText.from_welcome(welcome, frames)
        if text is not None:
            text.close()

    def close(self) -> None:
        """Lets go of the processes that fill the template. Idempotent."""
        if self.text is not None:
            self.text.close()


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
