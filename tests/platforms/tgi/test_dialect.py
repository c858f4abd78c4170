"""Errors of Text Generation Inference's API name its own fields, as those of other APIs do."""

from __future__ import annotations

import httpx
import pytest

from penstock_gateway.completions.endpoint import CompletionRequest
from penstock_gateway.request.dialect import NamedField
from penstock_platforms.tgi.request import TGI, GenerateRequest
from tests.gateway.request.spoken import (
    Spoken,
    cases,
    check_sentences,
    id_of,
    names_fields_that_there_are,
    refuses_a_wrong_value,
    refuses_what_is_not_supported,
    says_its_names,
)

pytestmark = pytest.mark.timeout(300)

API = Spoken("/generate", {"inputs": "a"}, TGI, GenerateRequest, CompletionRequest)


@pytest.mark.parametrize(("api", "field"), cases([API], copied=True), ids=id_of)
async def test_a_wrong_value_is_told_by_the_name_that_the_body_has(
    http: httpx.AsyncClient, api: Spoken, field: NamedField
) -> None:
    await refuses_a_wrong_value(http, api, field)


@pytest.mark.parametrize(("api", "field"), cases([API], copied=False), ids=id_of)
def test_each_name_of_the_table_is_said_and_values_stay(api: Spoken, field: NamedField) -> None:
    says_its_names(api, field)


def test_the_table_names_fields_that_there_are() -> None:
    names_fields_that_there_are(API)
    check_sentences([API])


async def test_what_is_not_supported_is_refused_by_its_name(http: httpx.AsyncClient) -> None:
    await refuses_what_is_not_supported(http, API)
