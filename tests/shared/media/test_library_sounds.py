"""Sounds in the library's prompts and conversations, and how processors of transformers place
them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor
from transformers.models.qwen2_audio.processing_qwen2_audio import Qwen2AudioProcessor

from penstock.client import ModelText
from penstock.config.settings import MediaSettings
from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.llm.media_prompts import library_chat, library_prompt
from penstock.llm.sounds_given import sources_of
from penstock.media.desk import MediaDesk
from penstock.media.layout import layout
from penstock.media.log_mel import log_mel
from penstock.media.placeholders import with_rows, with_runs
from penstock.media.prepared import read
from penstock.model.audio_spec import AudioSpec, AudioTowerSpec
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.model.sound_projector_spec import LinearProjector
from penstock.prepare.media import read_media
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from tests.gateway.media import MEL, PARTS
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.sounds import RATE, saved_sound, sound

TOWER = AudioTowerSpec(
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    mel_bins=12,
    positions=50,
    norm=NormSpec(kind="layer", eps=1e-5, bias=True),
    pooled=True,
)
AUDIO = AudioSpec(tower=TOWER, projector=LinearProjector(), cut=True)


@pytest.fixture(scope="module")
def text() -> ModelText:
    tokens = Tokenizer.from_bytes(tokenizer().to_str().encode(), add_bos=False, bos_token_id=None)
    mark = "<|AUDIO|>"
    facts = KindFacts(
        preparation=MEL, placeholder=mark, token=mark, token_id=tokens.special_tokens[mark]
    )
    return ModelText(tokens, ChatTemplate(PARTS, tokens), MediaFacts(kinds={"audio": facts}))


@pytest.fixture
async def desk() -> AsyncIterator[MediaDesk]:
    desk = MediaDesk(MediaSettings())
    yield desk
    desk.close()


async def test_every_form_of_a_sound(text: ModelText, desk: MediaDesk, tmp_path: Path) -> None:
    made = sound(0.4)
    file = tmp_path / "a.wav"
    file.write_bytes(saved_sound(made, subtype="FLOAT"))
    forms = [(made, RATE), (made.astype(np.float64), RATE), file, str(file), file.read_bytes()]
    wanted, rows = log_mel(MEL, made), MEL.embeddings(len(made))
    prompt = {"prompt": "a<|AUDIO|>" * len(forms), "multi_modal_data": {"audio": forms}}
    with desk.lease("") as lease:
        ids, media = await library_prompt(prompt, text).ready(desk, text, lease)
        assert media is not None
        assert ids == text.tokenizer.encode(("a" + "<|AUDIO|>" * rows) * len(forms))
        assert len(media.media.items) == 2  # A file, and samples of a program.
        for item in media.media.items:
            assert np.array_equal(read(media.prepared[item.name])["mel"], wanted)
        whole_numbers = (np.round(made * 32767).astype(np.int16), RATE)
        one = {"prompt": "<|AUDIO|>", "multi_modal_data": {"audio": whole_numbers}}
        _, found = await library_prompt(one, text).ready(desk, text, lease)
        assert found is not None
        for rate in (np.int64(RATE), np.float32(RATE), float(RATE)):
            (source,) = sources_of({"multi_modal_data": {"audio": (made, rate)}})
            assert source.raw == (made.tobytes(), (RATE,))
        (data,) = found.prepared.values()
        assert np.abs(read(data)["mel"] - wanted).max() < 0.01
        parts = [
            {"type": "text", "text": "xy"},
            {"type": "audio", "audio": (made, RATE)},
            {"type": "audio", "path": str(file)},
        ]
        chat = library_chat([{"role": "user", "content": parts}], text, add_generation_prompt=False)
        ids, media = await chat.ready(desk, text, lease)
        assert media is not None
        assert ids == text.tokenizer.encode("user:xy" + "<|AUDIO|>" * 2 * rows + ";")


BAD: list[tuple[Any, str]] = [
    (np.zeros(9, np.float32), "an array without its rate"),
    (5, r'multi_modal_data\["audio"\]\[0\] is int; \(array, rate\)'),
    ((np.zeros((2, 2), np.float32), RATE), r"\[2, 2\]; \[samples\] of one channel"),
    ((np.zeros(4, np.uint8), RATE), "an array of uint8; floats"),
    ((np.zeros(0, np.float32), RATE), r"shape \[0\]"),
    *(
        ((np.zeros(4, np.float32), rate), f"has the rate {shown}; a whole number of 1000 to 384000")
        for rate, shown in (
            (float("nan"), "nan"),
            (float("inf"), "inf"),
            (16_000.5, "16000.5"),
            (np.int64(999), "999"),
            (10**30, "10{30}"),
            (0, "0"),
        )
    ),
]


@pytest.mark.parametrize(("given", "words"), BAD)
def test_bad_sounds_say_why(given: Any, words: str, text: ModelText) -> None:
    with pytest.raises(InvalidRequest, match=words):
        library_prompt({"prompt": "<|AUDIO|>", "multi_modal_data": {"audio": given}}, text)
    with pytest.raises(InvalidRequest, match="takes text and sounds only"):
        library_prompt({"prompt": "x", "multi_modal_data": {"image": "x.png"}}, text)


def written(folder: Path, **changes: Any) -> Qwen2AudioProcessor:
    made = tokenizer()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="</s>")
    extractor = WhisperFeatureExtractor(feature_size=12, chunk_length=1)
    processor = Qwen2AudioProcessor(extractor, fast)
    extractor.save_pretrained(folder)
    saved = folder / "preprocessor_config.json"
    saved.write_text(json.dumps(json.loads(saved.read_text()) | changes))
    made.save(str(folder / "tokenizer.json"))
    return processor


def facts_of(folder: Path) -> MediaFacts:
    config = Fields(
        {
            "architectures": ["Qwen2AudioForConditionalGeneration"],
            "audio_token_index": tokenizer().token_to_id("<|AUDIO|>"),
        },
        "config.json",
    )
    facts = read_media(folder, config, (folder / "tokenizer.json").read_bytes(), AUDIO)
    assert facts is not None
    return facts


def test_ids_are_those_of_transformers(tmp_path: Path) -> None:
    processor = written(tmp_path)
    facts = facts_of(tmp_path)
    assert facts.kinds["audio"].preparation == MEL
    content = (tmp_path / "tokenizer.json").read_bytes()
    tokens = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)
    lengths = (0.05, 0.5, 1.0)
    prompt = "ab".join(["<|audio_bos|><|AUDIO|><|audio_eos|>\n"] * 3)
    sounds = [sound(seconds) for seconds in lengths]
    theirs = processor(text=[prompt], audio=sounds, sampling_rate=RATE, return_tensors="np")
    layouts = [layout(facts, "audio", (len(each),)) for each in sounds]
    ids, spans = with_rows(tokens.encode(with_runs(prompt, facts, layouts)), facts, layouts)
    assert ids == theirs["input_ids"][0].tolist()
    assert [span.tokens for span in spans] == [one.rows for one in layouts]
    for each, features in zip(sounds, theirs["input_features"], strict=True):
        mel = log_mel(MEL, each)[0]
        # torch's transform, where it is installed.
        assert np.abs(mel - features[:, : mel.shape[1]]).max() < 1e-4


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"feature_extractor_type": "SpeechT5FeatureExtractor"}, "SpeechT5"),
    ({"feature_size": 13}, "feature_size is 13; 12, the tower's num_mel_bins, is needed"),
    ({"chunk_length": 2}, "chunk_length is 2; what the tower has"),
    ({"sampling_rate": 8000}, "sampling_rate is 8000; 16000 at least"),
    ({"dither": 0.1}, "dither is 0.1; 0 is needed"),
    ({"do_normalize": True}, "do_normalize"),
    ({"hop_length": 0}, "hop_length is 0"),
    ({"louder": 3}, "louder is not known here"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_settings_that_cant_be_followed_are_named(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    written(tmp_path, **changes)
    with pytest.raises(UnsupportedModel, match=words):
        facts_of(tmp_path)
