"""A decoder that sees, served for vectors and scores: of texts, and of conversations with pictures,
over HTTP and in the library, beside transformers."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from penstock import LLM
from penstock.errors import InvalidRequest
from testing.pooling_models import sentence_files
from testing.serving import Server
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.pictures import picture
from tests.shared.media.processors import without_videos
from tests.system.hub_folders import write_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLOSE = 1e-4
MARK = "<|vision_start|><|image_pad|><|vision_end|>"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}" + MARK + "{% else %}"
    "{{ c['text'] }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class Seeing:
    """The folder of a tiny Qwen3-VL whose last token is pooled, and what transformers makes."""

    def __init__(self, folder: Path) -> None:
        tokens = tokenizer()
        ids = tokens.get_vocab(with_added_tokens=True)
        config = Qwen3VLConfig(
            text_config={
                "vocab_size": len(ids),
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "max_position_embeddings": 512,
                "initializer_range": 0.2,
                "bos_token_id": ids["<s>"],
                "eos_token_id": ids["</s>"],
                "pad_token_id": ids["</s>"],
                "rope_parameters": {
                    "rope_type": "default",
                    "mrope_section": [4, 2, 2],
                    "rope_theta": 100.0,
                },
            },
            vision_config={
                "depth": 2,
                "hidden_size": 48,
                "out_hidden_size": 64,
                "intermediate_size": 52,
                "num_heads": 4,
                "patch_size": 4,
                "num_position_embeddings": 25,
                "deepstack_visual_indexes": [0],
                "initializer_range": 0.2,
            },
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
        )
        torch.manual_seed(41)
        self.model = Qwen3VLForConditionalGeneration(config).eval()
        size = {"shortest_edge": 16 * 16, "longest_edge": 48 * 48}
        pictures = Qwen2VLImageProcessorPil(size=size, patch_size=4)
        named = {"eos_token": "</s>"}
        self.folder = write_folder(
            folder, self.model, pictures, tokens, named=named, template=TEMPLATE
        )
        sentence_files(folder, "lasttoken", normalize=True)
        self.answers = (ids["a"], ids["b"])
        fast = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="</s>")
        self._processor = without_videos(Qwen3VLProcessor)(pictures, fast)

    def vector(self, text: str, *shown: Image.Image) -> np.ndarray:
        """Of a filled template, with length 1."""
        given = self._processor(
            text=[text],
            images=list(shown) or None,
            return_tensors="pt",
            return_mm_token_type_ids=True,
        )
        with torch.inference_mode():
            last = self.model.model(**given).last_hidden_state[0, -1].float()
        found: np.ndarray = (last / last.norm()).numpy()
        return found

    def relevance(self, text: str, *shown: Image.Image) -> float:
        """The second answer's probability behind a filled template, of the two."""
        given = self._processor(
            text=[text],
            images=list(shown) or None,
            return_tensors="pt",
            return_mm_token_type_ids=True,
        )
        with torch.inference_mode():
            logits = self.model(**given).logits[0, -1, list(self.answers)]
        return float(logits.softmax(0)[1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(tmp_path_factory.mktemp("seeing") / "m")


@pytest.fixture(scope="module")
def server(model: Seeing) -> Iterator[Server]:
    with Server(str(model.folder), "--max-num-batched-tokens", "48") as running:
        yield running


@pytest.fixture(scope="module")
def reranker(model: Seeing) -> Path:
    """Copies the model into a folder that is called as Qwen's reranker is."""
    folder = model.folder.parent / "Qwen3-VL-Reranker-tiny"
    shutil.copytree(model.folder, folder, ignore=shutil.ignore_patterns("modules.json", "1_*"))
    file = folder / "config.json"
    stated = {**json.loads(file.read_text()), "classifier_from_token": ["a", "b"]}
    file.write_text(json.dumps(stated))
    return folder


FILES = 20_000
"""Bytes of the media that a request may hold at a time."""


@pytest.fixture(scope="module")
def judge(reranker: Path) -> Iterator[Server]:
    settings = ("--max-num-batched-tokens", "48", "--max-media-request-bytes", str(FILES))
    with Server(str(reranker), *settings) as running:
        yield running


def part(shown: Image.Image) -> dict[str, Any]:
    file = io.BytesIO()
    shown.save(file, "png")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def embedded(server: Server, **body: Any) -> np.ndarray:
    status, answer = server.post("/v1/embeddings", body)
    assert status == 200, answer
    return np.array([each["embedding"] for each in answer["data"]])


ONE, OTHER = picture(40, 30, 1), picture(33, 47, 2)
CONVERSATION = [
    {"role": "system", "content": [said("ab")]},
    {"role": "user", "content": [part(ONE), said("abc ab"), part(OTHER)]},
]
FILLED = f"system:ab;user:{MARK}abc ab{MARK};"


def test_texts_and_conversations_with_pictures(server: Server, model: Seeing) -> None:
    texts = ["abc", "a longer text, abcabc"]
    for vector, text in zip(embedded(server, input=texts), texts, strict=True):
        assert np.abs(vector - model.vector(text)).max() < CLOSE
    (alone,) = embedded(server, messages=CONVERSATION)
    assert np.abs(alone - model.vector(FILLED, ONE, OTHER)).max() < CLOSE
    (opened,) = embedded(server, messages=CONVERSATION, add_generation_prompt=True)
    assert np.abs(opened - model.vector(f"{FILLED}assistant:", ONE, OTHER)).max() < CLOSE
    (plain,) = embedded(server, messages=[{"role": "user", "content": "abc"}])
    assert np.abs(plain - model.vector("user:abc;")).max() < CLOSE
    with ThreadPoolExecutor(6) as crowd:
        other = [{"role": "user", "content": [part(OTHER), said("ab")]}]
        asked = [CONVERSATION, other, CONVERSATION, other, CONVERSATION, other]
        found = list(crowd.map(lambda each: embedded(server, messages=each)[0], asked))
    for vector in found[::2]:
        assert vector.tobytes() == alone.tobytes()


def test_what_can_not_be_followed_is_refused(server: Server) -> None:
    for body, named in (
        ({"messages": CONVERSATION, "truncate_prompt_tokens": 8}, "can't be truncated"),
        ({"messages": CONVERSATION, "input": "ab"}, "either input or messages"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user", "content": [said("abc " * 400)]}]}, "at most 512"),
    ):
        status, answer = server.post("/v1/embeddings", body)
        assert status == 400, answer
        assert named in answer["error"]["message"]


def test_the_library_embeds_prompts_with_pictures(model: Seeing) -> None:
    text = f"ab {MARK} abc {MARK}"
    prompt: Any = {"prompt": text, "multi_modal_data": {"image": [ONE, OTHER]}}
    with LLM(str(model.folder), max_model_len=256, num_kv_blocks=64) as llm:
        outputs = llm.embed([prompt, "abc", prompt])
        (compared,) = llm.score("abc", {"content": [part(ONE)]})
    vectors = [np.array(each.outputs.embedding) for each in outputs]
    assert np.abs(vectors[0] - model.vector(text, ONE, OTHER)).max() < CLOSE
    assert np.abs(vectors[1] - model.vector("abc")).max() < CLOSE
    assert vectors[0].tobytes() == vectors[2].tobytes()
    query = model.vector("user:abc;assistant:")
    document = model.vector(f"user:{MARK};assistant:", ONE)
    assert abs(compared.outputs.score - query @ document) < CLOSE


RULE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
OWN = "Given a search query, retrieve relevant candidates that answer the query."


def judged(query: str, document: str, instruction: str = OWN) -> str:
    """The prompt of Qwen3-VL-Reranker's own code, in this model's format."""
    asked = f"<Instruct>: {instruction}<Query>:{query}\n<Document>:{document}"
    return f"system:{RULE};user:{asked};assistant:"


def url(shown: Image.Image) -> str:
    found: str = part(shown)["image_url"]["url"]
    return found


def ranks(server: Server, **body: Any) -> list[dict[str, Any]]:
    status, answer = server.post("/v1/rerank", body)
    assert status == 200, answer
    found: list[dict[str, Any]] = answer["results"]
    return found


def test_documents_with_pictures_are_ranked(judge: Server, model: Seeing) -> None:
    documents = [
        "a text",
        {"image": url(ONE)},
        {"text": "abc", "image": url(OTHER)},
        {"content": [said("ab"), part(ONE), said("c")]},
        {"text": "another text"},
    ]
    told: list[tuple[str, list[Image.Image]]] = [
        ("a text", []),
        (MARK, [ONE]),
        (f"{MARK}abc", [OTHER]),
        (f"ab{MARK}c", [ONE]),
        ("another text", []),
    ]
    asked: list[tuple[Any, str, list[Image.Image]]] = [
        ("abc", "abc", []),
        ({"text": "ab", "image": url(OTHER)}, f"{MARK}ab", [OTHER]),
    ]
    for query, text, shown in asked:
        found = ranks(judge, query=query, documents=documents)
        wanted = [model.relevance(judged(text, words), *shown, *seen) for words, seen in told]
        got = {each["index"]: each["relevance_score"] for each in found}
        assert np.abs(np.array([got[n] for n in range(5)]) - wanted).max() < CLOSE
        assert [each["index"] for each in found] == sorted(got, key=lambda n: (-got[n], n))
    texts = {each["index"]: each["document"]["text"] for each in found}
    assert texts == {0: "a text", 1: "", 2: "abc", 3: "ab\nc", 4: "another text"}


def test_more_pictures_than_a_request_may_hold(judge: Server) -> None:
    """A pair's are held while it is computed."""
    documents = [{"image": url(picture(40, 30, number))} for number in range(9)]
    assert sum(len(each["image"]) * 3 // 4 for each in documents) > FILES
    found = ranks(judge, query={"image": url(OTHER)}, documents=documents)
    (alone,) = ranks(judge, query={"image": url(OTHER)}, documents=documents[4:5])
    got = {each["index"]: each["relevance_score"] for each in found}
    assert len(set(got.values())) == 9
    assert got[4] == alone["relevance_score"]


def test_an_instruction_of_ones_own_and_scores(judge: Server, model: Seeing) -> None:
    parts = {"content": [said("ab"), part(ONE)]}
    body = {"text_1": "abc", "text_2": parts, "instruction": "bca"}
    status, answer = judge.post("/score", body)
    assert status == 200, answer
    wanted = [
        model.relevance(judged("abc", "ab", "bca")),
        model.relevance(judged("abc", MARK, "bca"), ONE),
    ]
    found = [each["score"] for each in answer["data"]]
    assert np.abs(np.array(found) - wanted).max() < CLOSE
    (alone,) = ranks(judge, query="abc", documents=[{"image": url(ONE)}], instruction="bca")
    assert alone["relevance_score"] == found[1]


def test_vectors_of_pictures_and_texts_are_compared(server: Server, model: Seeing) -> None:
    """All of them as conversations, if one has a picture; bare texts as they are."""
    found = ranks(server, query="abc", documents=["ab", {"image": url(ONE)}])
    got = {each["index"]: each["relevance_score"] for each in found}
    query = model.vector("user:abc;assistant:")
    vectors = [
        model.vector("user:ab;assistant:"),
        model.vector(f"user:{MARK};assistant:", ONE),
    ]
    assert np.abs(np.array([got[0], got[1]]) - [query @ each for each in vectors]).max() < CLOSE
    (bare,) = ranks(server, query="abc", documents=["ab"])
    assert abs(bare["relevance_score"] - model.vector("abc") @ model.vector("ab")) < CLOSE
    (told,) = ranks(server, query="abc", documents=["ab"], instruction="a")
    vectors = [model.vector(f"system:a;user:{text};assistant:") for text in ("abc", "ab")]
    assert abs(told["relevance_score"] - vectors[0] @ vectors[1]) < CLOSE


LONG = "x" * (1 << 20)
PARTS = {"content": [{"type": "sculpture"}]}
EMPTY = {"content": [{"type": "text", "text": ""}]}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"documents": [{}]}, "documents[0]", "is empty; a text, an image, or content"),
        ({"documents": ["a", EMPTY]}, "documents[1]", "is empty"),
        ({"documents": EMPTY}, "documents.content[0]", "is empty"),
        ({"documents": ["a", {"text": "a", **EMPTY}]}, "documents[1]", "has content"),
        ({"documents": [PARTS]}, "documents[0].content[0]", "is a part of type"),
        ({"documents": PARTS}, "documents.content[0]", "is a part of type"),
        ({"documents": ["a", {"image": "nonsense"}]}, "documents[1].image", ": the picture has an"),
        ({"documents": {"image": "http://a/b"}}, "documents.image", ": the picture has a URL"),
        ({"documents": {"content": []}}, "documents", "has 0 entries"),
        ({"documents": [{"content": [said("a")] * 2049}]}, "documents[0].content", "has 2049"),
        ({"documents": ["a", {"text": "abc " * 400}]}, "documents[1]", "at most 512"),
        ({"query": {"image": "nonsense"}}, "query.image", ": the picture has an"),
        ({"query": {"content": [part(ONE)] * 17}}, "query.content[16]", "at most 16"),
        ({"truncate_prompt_tokens": 8}, "truncate_prompt_tokens", "in the format of a chat, can't"),
        ({"query": LONG, "documents": ["a"] * 600}, "documents[0]", "at most 32768"),
    ],
)
def test_what_is_wrong_is_named_as_the_body_has_it(
    judge: Server, body: dict[str, Any], param: str, said: str
) -> None:
    gateway = Path(f"/proc/{judge.children()['penstock: gateway 0']}/status")
    before = highest_memory(gateway)
    status, answer = judge.post("/v1/rerank", {"query": "abc", "documents": ["a"], **body})
    assert status == 400, answer
    error = answer["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert said in error["message"]
    assert "messages[" not in error["message"]
    assert "truncate_prompt_tokens cuts" not in error["message"]
    # A conversation for each pair at once would be 600 MB of them.
    assert highest_memory(gateway) - before < 300 << 20


def highest_memory(status: Path) -> int:
    """Bytes that the process has had at most."""
    found = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(found.split()[1]) << 10


def test_a_picture_in_base64_alone_or_with_a_text_in_its_part(judge: Server) -> None:
    """As Jina's API takes it; and a part is what its type says."""
    bare = url(ONE).partition(",")[2]
    both = {"content": [{**part(ONE), "text": "ab"}]}
    found = ranks(judge, query="abc", documents=[{"image": bare}, {"image": url(ONE)}, both])
    assert len({each["relevance_score"] for each in found}) == 1
    assert [each["document"]["text"] for each in found] == [""] * 3
    status, answer = judge.post("/score", {"text_1": "abc", "text_2": {"image": bare}})
    assert status == 200, answer
    assert [each["score"] for each in answer["data"]] == [found[0]["relevance_score"]]


def test_the_library_scores_pictures(reranker: Path, model: Seeing) -> None:
    with LLM(str(reranker), max_model_len=512, num_kv_blocks=128) as llm:
        shown = {"content": [said("ab"), {"type": "image_pil", "image_pil": ONE}]}
        outputs = llm.score("abc", shown)
        with pytest.raises(InvalidRequest, match="can't be truncated"):
            llm.score("abc", "ab", truncate_prompt_tokens=8)
    found = [each.outputs.score for each in outputs]
    wanted = [model.relevance(judged("abc", "ab")), model.relevance(judged("abc", MARK), ONE)]
    assert np.abs(np.array(found) - wanted).max() < CLOSE
