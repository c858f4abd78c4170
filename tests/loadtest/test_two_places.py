"""The page of estimates for experts in the host's memory is what the command writes."""

from __future__ import annotations

import pytest

from loadtest.two_places.__main__ import PAGE
from loadtest.two_places.page import CARDS, HOSTS, MODELS, text

pytestmark = pytest.mark.timeout(60)


def test_the_page_is_what_the_command_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == text()


def test_every_card_model_and_host_has_a_row() -> None:
    lines = text().splitlines()
    for model in MODELS:
        for card in CARDS:
            found = [
                line for line in lines if line.startswith(f"| {model} ") and f" {card}, " in line
            ]
            assert len(found) == len(HOSTS)
