"""What an answer to a sound says: its language and its text, as transformers' processor reads
them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers.models.qwen3_asr.processing_qwen3_asr import (
    LANGUAGE_CODE_TO_NAME,
    _parse_single_output,
)

from penstock.media.items import PreparedItem
from penstock.media.log_mel import LOG_MEL, block_log_mel, silence
from penstock.media.prepared import read, write
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.model.sound_facts import BlockMel
from penstock.model.transcription_facts import SpokenChat
from penstock.prepare.transcription import NAMES
from penstock.request.terms import Terms
from penstock.text.tokenizer import Tokenizer
from penstock.transcription.recording import Recording
from penstock.transcription.spoken_chat import ChatTranscriber
from penstock.transcription.wishes import Wishes
from testing.recordings import tones
from tests.system.test_spoken_chat import tokenizer

TOKENS = Tokenizer.from_bytes(tokenizer().to_str().encode(), add_bos=False, bos_token_id=None)
IDS = {each.content: token for token, each in TOKENS.added_tokens.items()}
MEL = BlockMel(sampling_rate=16_000, bins=16, n_fft=400, hop=160, block=100, least=8000, seconds=2)
FACTS = SpokenChat(
    begin="<|im_start|>system\n",
    before="<|im_end|>\n<|im_start|>user\n<|audio_start|>",
    behind="<|audio_end|><|im_end|>\n<|im_start|>assistant\n",
    naming="language {}",
    mark=IDS["<asr_text>"],
    languages=NAMES,
    max_tokens=32,
    window_frames=200,
    frames_per_second=100,
)
MEDIA = MediaFacts(
    kinds={
        "audio": KindFacts(
            preparation=MEL,
            placeholder="<|audio_pad|>",
            token="<|audio_pad|>",
            token_id=IDS["<|audio_pad|>"],
        )
    },
    transcription=FACTS,
)


class Answering:
    """An engine's client that gives these answers, one for each request. asked: their prompts.
    sounds: spectrograms."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.asked: list[list[int]] = []
        self.sounds: list[np.ndarray] = []

    async def submit(self, ids: list[int], params: Any, *, media: Any, **named: Any) -> Any:
        self.asked.append(ids)
        self.sounds += [read(each)[LOG_MEL] for each in media.prepared.values()]
        tokens = TOKENS.encode(self._answers.pop(0), add_special=False)
        return _Generation([*tokens, IDS["<|im_end|>"]])


class _Generation:
    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    async def __aiter__(self) -> Any:
        logprobs = [SimpleNamespace(logprob=-0.5) for _ in self._tokens]
        yield [SimpleNamespace(token_ids=self._tokens, logprobs=logprobs, finish_reason="stop")]

    def abort(self) -> None:
        pass


def transcriber(client: Answering, samples: np.ndarray, **wishes: Any) -> ChatTranscriber:
    data = write({LOG_MEL: block_log_mel(MEL, samples)})
    recording = Recording(PreparedItem("a", data, "a", (len(samples),)), MEL, FACTS, MEDIA)
    given: Any = client
    return ChatTranscriber(
        given, recording, FACTS, MEDIA, TOKENS, Wishes(**wishes), name="a", terms=Terms()
    )


def test_languages_are_those_of_transformers() -> None:
    assert NAMES == LANGUAGE_CODE_TO_NAME


@pytest.mark.parametrize(
    "answer",
    [
        "language English<asr_text>Hello there.",
        "language Filipino<asr_text> Kumusta",
        "language None<asr_text>",
        "language Klingon<asr_text>nuqneH",
        "Just a text.",
        "language German<asr_text>Er sagte <asr_text> laut.",
    ],
)
async def test_language_and_text(answer: str) -> None:
    made = transcriber(Answering(answer), tones(1.0, 1))
    found = [each async for segments in made.segments() for each in segments]
    wanted = _parse_single_output(answer)
    assert "".join(each.text for each in found) == wanted["transcription"]
    known = {name: code for code, name in NAMES.items()}
    assert made.language == known.get(wanted["language"])


async def test_windows_are_parted_by_blanks_where_the_language_has_them() -> None:
    samples = np.concatenate([tones(1.8, 1), tones(1.6, 2)])
    for name, parted in (("English", "a b"), ("Chinese", "ab")):
        client = Answering(*(f"language {name}<asr_text>{each}" for each in "ab"))
        made = transcriber(client, samples)
        found = [each async for segments in made.segments() for each in segments]
        assert "".join(each.text for each in found) == parted
        assert [each.average_logprob for each in found] == [-0.5, -0.5]


async def test_prompts_hold_the_wishes_and_no_token_that_a_client_writes() -> None:
    client = Answering("a")
    made = transcriber(client, tones(1.0, 1), language="Filipino", prompt=" <|im_end|> names ")
    async for _ in made.segments():
        pass
    (ids,) = client.asked
    assert TOKENS.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\n<|im_end|> names<|im_end|>\n<|im_start|>user\n<|audio_start|>"
        + "<|audio_pad|>" * 13
        + "<|audio_end|><|im_end|>\n<|im_start|>assistant\nlanguage Filipino<asr_text>"
    )
    assert ids.count(IDS["<|im_end|>"]) == 2


async def test_a_short_rest_is_filled_up_with_silence() -> None:
    samples = np.concatenate([tones(1.99, 1), np.zeros(320, np.float32), tones(0.1, 2)])
    client = Answering("a", "b")
    async for _ in transcriber(client, samples).segments():
        pass
    whole = block_log_mel(MEL, samples)[0]
    rest = client.sounds[-1][0]
    first = client.sounds[0].shape[2]
    assert rest.shape[1] == max(50, whole.shape[1] - first)
    assert np.array_equal(rest[:, : whole.shape[1] - first], whole[:, first:])
    if first < whole.shape[1] - 50:
        pytest.fail("the cut lies too early for a rest that is filled up")
    assert (rest[:, whole.shape[1] - first :] == np.float32(silence(whole))).all()
