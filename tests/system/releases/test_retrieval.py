"""all-mpnet-base-v2 finds what answers a question: its vectors and its order of texts are
transformers'."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock import LLM
from tests.system.releases.files import MPNET

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

TEXTS = [
    "Water boils at a lower temperature on high mountains, because the air pressure is lower.",
    "The heart pumps blood through arteries and veins.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "A binary search halves the sorted range that is left in each step.",
    "The Treaty of Westphalia ended the Thirty Years' War in 1648.",
    "Bread rises because yeast makes carbon dioxide in the dough.",
    "The Pacific is the largest and deepest of the oceans.",
    "A mortgage is a loan that is secured by a house.",
    "Bees tell one another by a dance where flowers are.",
    "Vaccines teach the immune system to recognise a virus.",
    "The tides are caused mainly by the gravity of the moon.",
    "Rust forms when iron meets oxygen and water.",
    "In chess, a bishop moves diagonally.",
    "A garbage collector frees memory that no object refers to any more.",
    "Mozart wrote his first symphony when he was eight years old.",
    "Insulin lets cells take up sugar from the blood.",
    "Earthquakes happen where plates of the earth's crust slide past one another.",
    "The Python keyword yield turns a function into a generator.",
    "Penguins live almost only in the southern hemisphere.",
    "A leap year has 366 days and comes every four years, with exceptions.",
]
QUERIES = {
    "Why does cooking pasta take longer in the Alps?": 0,
    "How do plants make food?": 2,
    "fast way to find an element in an ordered list": 3,
    "Which agreement brought peace to Europe in the 17th century?": 4,
    "what makes dough grow": 5,
    "borrowing money to buy a home": 7,
    "How do insects share the location of food?": 8,
    "why does the sea rise and fall twice a day": 10,
    "automatic memory management": 13,
    "diabetes hormone": 15,
}


@pytest.fixture(scope="module")
def folder() -> Path:
    return MPNET.file().parent


def theirs(folder: Path, texts: list[str]) -> np.ndarray:
    """float32 [texts, width], of length 1: the mean of the last layer's rows."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for text in texts:
        with torch.inference_mode():
            found = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        rows.append((found / found.norm()).numpy())
    return np.stack(rows)


def test_vectors_and_ranks_are_those_of_transformers(folder: Path) -> None:
    texts = [*TEXTS, *QUERIES]
    with LLM(str(folder), dtype="float32") as llm:
        ours = np.array([each.outputs.embedding for each in llm.embed(texts, use_tqdm=False)])
    wanted = theirs(folder, texts)
    distance = np.abs(ours - wanted).max()
    print(f"vectors differ by at most {distance:.1e}")
    assert distance < 1e-5
    count = len(TEXTS)
    order, theirs_order = (np.argsort(-(v[count:] @ v[:count].T), axis=1) for v in (ours, wanted))
    assert np.array_equal(order, theirs_order)
    assert order[:, 0].tolist() == list(QUERIES.values())


def test_as_it_is_served_it_finds_the_same(folder: Path) -> None:
    """With the default, whose numbers are coarser."""
    with LLM(str(folder)) as llm:
        vectors = llm.embed([*TEXTS, *QUERIES], use_tqdm=False)
    rows = np.array([each.outputs.embedding for each in vectors])
    scores = rows[len(TEXTS) :] @ rows[: len(TEXTS)].T
    assert scores.argmax(axis=1).tolist() == list(QUERIES.values())
