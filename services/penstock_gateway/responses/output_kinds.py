"""Which item each part of an answer becomes; a call has one after its tool's kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import UNSET

from penstock.text.call_arguments import lenient_object
from penstock_gateway.chat.answer_parts import AnswerParts
from penstock_gateway.chat.custom_tools import InputText
from penstock_gateway.chat.parsed_choice import Parsing
from penstock_gateway.generate.logprobs import ChatLogprob
from penstock_gateway.responses.items import (
    ApplyPatchCallItem,
    CustomCallItem,
    FunctionCallItem,
    LocalShellCallItem,
    OutputItem,
    OutputMessage,
    ReasoningItem,
    ShellCallItem,
)
from penstock_gateway.responses.output import (
    Events,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    ThoughtsShown,
)
from penstock_gateway.responses.tool_kinds import (
    BY_CALL,
    CUSTOM,
    FUNCTION,
    ActionKind,
    NamedTool,
    as_json,
)

if TYPE_CHECKING:
    from penstock.text.detokenizer import Detokenizer

_ACTION_ITEMS: dict[str, type[LocalShellCallItem | ShellCallItem | ApplyPatchCallItem]] = {
    "local_shell_call": LocalShellCallItem,
    "shell_call": ShellCallItem,
    "apply_patch_call": ApplyPatchCallItem,
}


class OpenFunctionCall(OpenItem):
    """A call of a function, whose text is its arguments."""

    def __init__(
        self, events: Events, id: str, index: int, call_id: str, called: NamedTool
    ) -> None:
        super().__init__(events, id, index)
        self._call_id = call_id
        self._called = called

    def _item(self, status: str, text: str) -> OutputItem:
        called = self._called
        return FunctionCallItem(
            self.id, status, self._call_id, called.name, text, called.namespace or UNSET
        )

    def _begun(self) -> None:
        """A call has no parts."""

    def _added(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._tell("function_call_arguments.delta", delta=text)

    def _finished(self, text: str) -> None:
        # The name: some of OpenAI's SDKs insist on it.
        self._tell("function_call_arguments.done", arguments=text, name=self._called.name)


class OpenCustomInput(OpenFunctionCall):
    """A call of a custom tool, whose text is its input."""

    def _item(self, status: str, text: str) -> OutputItem:
        called = self._called
        return CustomCallItem(
            self.id, status, self._call_id, called.name, text, called.namespace or UNSET
        )

    def _added(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._tell("custom_tool_call_input.delta", delta=text)

    def _finished(self, text: str) -> None:
        self._tell("custom_tool_call_input.done", input=text)


class OpenCustomCall(OpenCustomInput):
    """A call of a custom tool, read from the arguments of the function that stands for the tool."""

    def __init__(
        self, events: Events, id: str, index: int, call_id: str, called: NamedTool
    ) -> None:
        super().__init__(events, id, index, call_id, called)
        self._input = InputText()

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._add_input(self._input.feed(text))

    def finish(self, status: str) -> OutputItem:
        self._add_input(self._input.rest())
        return super().finish(status)

    def _add_input(self, text: str) -> None:
        if text:
            super().add(text, [])


class OpenAction(OpenFunctionCall):
    """A call that holds an object, which is sent once it is whole."""

    def __init__(
        self,
        events: Events,
        id: str,
        index: int,
        call_id: str,
        called: NamedTool,
        kind: ActionKind,
    ) -> None:
        super().__init__(events, id, index, call_id, called)
        self._kind = kind

    def begin(self) -> None:
        """Does nothing: the item's events come at its end."""

    def finish(self, status: str) -> OutputItem:
        text = "".join(self._texts)
        for kind, said in (("output_item.added", "in_progress"), ("output_item.done", status)):
            item = self._item(said, text)
            self._events.send(kind, output_index=self._index, item=item)
        return item

    def _item(self, status: str, text: str) -> OutputItem:
        said = lenient_object(text) or {}
        if self._kind.call == "apply_patch_call" and status == "incomplete":
            status = "in_progress"  # It has no other.
        make = _ACTION_ITEMS[self._kind.call]
        return make(self.id, status, self._call_id, {**self._kind.always, **said})

    def _added(self, text: str, logprobs: list[ChatLogprob]) -> None:
        """Does nothing: this kind of item is sent at its end."""


class ItemKinds:
    """Items of the kinds that a response has. base: what their ids are made of."""

    def __init__(self, events: Events, base: str) -> None:
        self._events = events
        self._base = base

    def text(self, index: int) -> OpenMessage:
        return OpenMessage(self._events, self._id("msg", index), index)

    def _thoughts(self, index: int, shown: ThoughtsShown) -> OpenReasoning:
        return OpenReasoning(self._events, self._id("rs", index), index, shown=shown)

    def again(self, index: int, item: OutputItem) -> OpenItem:
        """One like an item that there is. Its text is what `text_of` finds in that."""
        match item:
            case OutputMessage():
                return self.text(index)
            case ReasoningItem():
                return self._thoughts(index, ThoughtsShown.in_item(item))
            case FunctionCallItem():
                called = NamedTool(FUNCTION, item.name, item.namespace or None)
            case CustomCallItem():
                called = NamedTool(CUSTOM, item.name, item.namespace or None)
            case LocalShellCallItem() | ShellCallItem() | ApplyPatchCallItem():
                type = item.__struct_config__.tag
                called = NamedTool(BY_CALL[str(type)], "")
        return self._call(OpenCustomInput, index, item.call_id, called)

    def _call(
        self, custom: type[OpenCustomInput], index: int, call_id: str, called: NamedTool
    ) -> OpenFunctionCall:
        if isinstance(called.kind, ActionKind):
            id = self._id(called.kind.prefix, index)
            return OpenAction(self._events, id, index, call_id, called, called.kind)
        is_custom = called.kind is CUSTOM
        make, id = (custom, "ctc") if is_custom else (OpenFunctionCall, "fc")
        return make(self._events, self._id(id, index), index, call_id, called)

    def _id(self, prefix: str, index: int) -> str:
        return f"{prefix}_{self._base}_{index}"


class AnswerKinds(ItemKinds):
    """Items of an answer as the model writes it. called: the tool that a function's name stands
    for. shown: where thoughts are shown."""

    def __init__(
        self,
        events: Events,
        base: str,
        called: Callable[[str], NamedTool],
        shown: ThoughtsShown,
    ) -> None:
        super().__init__(events, base)
        self._called = called
        self._shown = shown

    def thoughts(self, index: int) -> OpenReasoning:
        return self._thoughts(index, self._shown)

    def call(self, index: int, call_id: str, name: str) -> OpenFunctionCall:
        """Begins a call, whose text is the arguments of the function that stands for the tool."""
        return self._call(OpenCustomCall, index, call_id, self._called(name))


def output_items(
    events: Events,
    base: str,
    called: Callable[[str], NamedTool],
    shown: ThoughtsShown,
    parsing: Parsing | None,
    detokenizer: Detokenizer | None,
    draw: bytes,
) -> AnswerParts[OutputItem]:
    """The items of one answer. Where nothing is parsed it is one message, which is there from the
    beginning. base, called, shown: as AnswerKinds has them.  detokenizer, draw: as AnswerParts has
    them."""
    kinds = AnswerKinds(events, base, called, shown)
    items: AnswerParts[OutputItem] = AnswerParts(kinds, parsing, detokenizer, draw)
    if parsing is None:
        items.begin_text()
    return items


def text_of(item: OutputItem) -> str:
    """The text that an item holds."""
    match item:
        case FunctionCallItem():
            return item.arguments
        case CustomCallItem():
            return item.input
        case LocalShellCallItem() | ShellCallItem():
            return as_json(item.action)
        case ApplyPatchCallItem():
            return as_json(item.operation)
    return "".join(part.text for part in item.content)
