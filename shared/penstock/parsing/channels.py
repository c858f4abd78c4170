"""Messages in channels, as gpt-oss writes them (OpenAI's harmony format):

<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.
"""

from __future__ import annotations

import re

from penstock.parsing.call_text import overlap
from penstock.parsing.format import ChannelFormat, with_letters
from penstock.parsing.interface import CallArguments, CallBegin, Content, Reasoning, WalkingParser

MAX_HEAD = 512
_CHANNEL = re.compile(r"\s*([\w-]*)")


class Channels(WalkingParser):
    """Thoughts, content and calls by the heads of messages. A message whose head names no channel
    is content, and so is a text without any head.

    prompt: the filled template, or its end: it may have begun a message, or its head.
    calls: whether messages to functions are calls; else they are content.
    letters: what stands in the text for marks that are tokens.
    """

    def __init__(
        self,
        form: ChannelFormat,
        prompt: str,
        letters: dict[str, str] | None = None,
        *,
        calls: bool = True,
    ) -> None:
        super().__init__(self._first)
        in_text = form.channel in form.tokens
        self._form = form = with_letters(form, letters or {})
        self._calls = calls
        for mark, letter in (letters or {}).items():
            prompt = prompt.replace(mark, letter)
        self._kind: type[Content] | type[Reasoning] | type[CallArguments] = Content
        begun = prompt.rpartition(form.begin)[2]
        head, text_mark, said = begun.partition(form.text)
        if text_mark and not any(end in said for end in form.ends):
            self._route(head)
            self._state = self._message
        elif form.channel in begun:
            self._state = self._head
        self._stops = (*form.ends, form.begin, *((form.channel,) if in_text else ()))

    def _first(self, ended: bool) -> bool:
        """State at the beginning of the answer, after the role that the prompt ends in."""
        text, form = self._rest.lstrip(), self._form
        marks = (form.channel, form.begin, "to=")
        if not ended and any(mark.startswith(text) and mark != text for mark in marks):
            return len(self._rest) > MAX_HEAD and self._go(self._message)
        if any(text.startswith(mark) for mark in marks):
            return self._go(self._head)
        return self._go(self._message)

    def _head(self, ended: bool) -> bool:
        """Up to the message's text. What was cut short here says nothing."""
        seen = self._rest[:MAX_HEAD]
        at = seen.find(self._form.text)
        if at < 0:
            if ended:
                self._rest = ""
            return len(seen) == MAX_HEAD and not ended and self._no_head()
        self._rest = self._rest[at + len(self._form.text) :]
        self._route(seen[:at])
        return self._go(self._message)

    def _no_head(self) -> bool:
        """What stands here is content, its mark included."""
        self._kind = Content
        for mark in (self._form.begin, self._form.channel):
            if self._rest.startswith(mark):
                self._say(mark)
                self._rest = self._rest.removeprefix(mark)
                break
        return self._go(self._message)

    def _route(self, head: str) -> None:
        """What the message of this head is."""
        form = self._form
        found = re.search(form.recipient, head)
        if found is not None and self._calls:
            self._events.append(CallBegin(found["name"]))
            self._kind = CallArguments
            return
        _, mark, after = head.rpartition(form.channel)
        match = _CHANNEL.match(after)
        channel = match[1] if mark and match is not None else ""
        self._kind = Reasoning if channel in form.thoughts else Content

    def _message(self, ended: bool) -> bool:
        rest = self._rest
        found = [(at, mark) for mark in self._stops if (at := rest.find(mark)) >= 0]
        if not found:
            keep = 0 if ended else max(overlap(rest, mark) for mark in self._stops)
            self._say(rest[: len(rest) - keep])
            self._rest = rest[len(rest) - keep :]
            return False
        at, mark = min(found)
        self._say(rest[:at])
        ends = mark in self._form.ends
        # Another channel, or another message, without an end before it.
        self._rest = rest[at + len(mark) :] if ends else rest[at:]
        return self._go(self._after_mark if ends else self._head)

    def _after_mark(self, ended: bool) -> bool:
        """State after the end of a message: the head of another follows, or stray text, which is
        content."""
        if not self._rest:
            return False
        marks = (self._form.begin, self._form.channel)
        if not ended and any(mark.startswith(self._rest) and mark != self._rest for mark in marks):
            return False
        if any(self._rest.startswith(mark) for mark in marks):
            return self._go(self._head)
        return self._no_head()

    def _say(self, text: str) -> None:
        if text:
            self._events.append(self._kind(text))
