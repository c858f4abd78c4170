"""A stream doesn't go on where the chat template is another than the one that it began with."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock_gateway.generate.replay import replay_of
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.request.fields import RequestFields, StreamOptions, TermsHeaders


class Asked(RequestFields, frozen=True, kw_only=True):
    """The least that an endpoint reads."""

    seed: int | None = None


def begun(template: str, last: str | None = None) -> Any:
    """The replay of a stream that a server with this template begins, or goes on with."""
    request = Asked(stream_options=StreamOptions(resumable=True))
    replay = replay_of(TermsHeaders("", None, None, last_event_id=last), request, "chat")
    head = ReplyHead.begin("1", "model", "fingerprint")
    replay.fixed(request, head, 7, template)
    return replay


def test_it_goes_on_with_the_same_template_only() -> None:
    last = f"{begun('one')._written}.3"
    assert begun("one", last).known_tokens == 3
    with pytest.raises(InvalidRequest, match="chat template") as refused:
        begun("two", last)
    assert refused.value.code == "model_changed"
