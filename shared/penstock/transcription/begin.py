"""From a recording's file to its Transcriber, in a front end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from penstock.client.computing import fingerprint_of_parts
from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.media.desk import MediaDesk
from penstock.media.sources import MediaSource
from penstock.model.media_facts import MediaFacts
from penstock.model.transcription_facts import SpokenChat, TranscriptionFacts
from penstock.request.terms import Terms
from penstock.text.template_shape import media_part, stand_ins
from penstock.transcription.decoding import WindowDecoder
from penstock.transcription.recording import record
from penstock.transcription.spoken_chat import ChatTranscriber
from penstock.transcription.transcriber import Transcriber
from penstock.transcription.wishes import Wishes, check

if TYPE_CHECKING:
    from penstock.client import EngineClient, ModelText


def facts_of(text: ModelText) -> TranscriptionFacts | SpokenChat:
    """Raises InvalidRequest for a model that doesn't transcribe."""
    facts = None if text.media is None else text.media.transcription
    if facts is None:
        raise InvalidRequest(
            "this model doesn't transcribe speech", param="model", code="unsupported_value"
        )
    return facts


def _check_aligns(client: EngineClient) -> None:
    """Raises InvalidRequest where no engine core, or not each, has words' times."""
    welcome, status = client.welcome, client.status
    if (welcome is None or welcome.aligns) and (status is None or status.aligns):
        return
    raise InvalidRequest(
        "this server can't say when words are spoken: that needs a model on one worker, on a CPU; "
        "segments have times everywhere",
        param="timestamp_granularities",
        code="unsupported_value",
    )


async def _asked(
    facts: SpokenChat, text: ModelText, media: MediaFacts, *, translate: bool
) -> SpokenChat:
    """The facts with what stands around the sound where the chat template is filled with it and
    the question. Raises InvalidRequest."""
    template = text.template
    if template is None:
        raise InvalidRequest(
            "this model has no chat template, with which it would be asked for a transcript",
            param="model",
            code="unsupported_value",
        )
    question = facts.translating if translate else facts.asking
    marks, own = stand_ins(), media.kinds["audio"]
    shape = template.known_shape
    if shape is None:
        shape = await asyncio.to_thread(template.content_shape)
    parts = [media_part("audio"), {"type": "text", "text": question}]
    content = f"{marks.of('audio')}{question}" if shape.texts else parts
    rendered = await template.rendered(messages=[{"role": "user", "content": content}])
    whole = rendered.text.replace(marks.of("audio"), own.placeholder)
    before, found, rest = whole.partition(own.placeholder)
    if not found:
        raise InvalidRequest("the chat template shows no sound", code="unsupported_value")
    return msgspec.structs.replace(facts, begin=before, behind=rest)


async def begin(
    client: EngineClient,
    desk: MediaDesk,
    text: ModelText,
    source: MediaSource,
    lease: MediaLease,
    wishes: Wishes,
    *,
    name: str,
    terms: Terms,
) -> Transcriber | ChatTranscriber:
    """Prepares the recording. lease: holds it to its end.  name: of the requests to the engine. All
    of them are computed alike.

    Raises InvalidRequest for wishes that the model can't fulfil, EngineUnavailable where engine
    cores' fingerprints aren't known yet, and what MediaDesk.prepare raises.
    """
    facts, media, tokenizer = facts_of(text), text.media, text.tokenizer
    if media is None:
        raise TypeError("a model has facts of transcribing in those of its media")
    check(wishes, facts, tokenizer)  # Before anything is decoded.
    if wishes.words:
        _check_aligns(client)
    recording = await record(desk, media, facts, source, lease)
    if terms.fingerprint is None:
        held = await fingerprint_of_parts(client, [], terms)
        terms = msgspec.structs.replace(terms, fingerprint=held)
    if isinstance(facts, SpokenChat):
        if facts.asking:
            facts = await _asked(facts, text, media, translate=wishes.translate)
        return ChatTranscriber(
            client, recording, facts, media, tokenizer, wishes, name=name, terms=terms
        )
    decoder = WindowDecoder(
        client, tokenizer, facts, wishes, recording.seed, name=name, terms=terms
    )
    return Transcriber(recording, decoder, facts, tokenizer, wishes)
