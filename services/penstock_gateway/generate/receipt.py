"""Which receipt a client asks for, and the reply that ends in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest
from penstock_gateway.generate.job import Job
from penstock_gateway.http.errors import clip
from penstock_gateway.models.backend import AskedModel
from penstock_gateway.request.fields import RequestFields

if TYPE_CHECKING:
    from penstock_gateway.receipts import Receipts

WISHES = ("0", "1", "digest", "logprobs")
"""Values of x-penstock-receipt: none; with token ids; with their digests alone; with
log-probabilities, too."""


def receipt_wish(
    request: RequestFields, header: str, receipts: Receipts | None, *, given: bool
) -> str:
    """Returns the receipt that is asked for, one of WISHES; empty for none. Raises InvalidRequest
    for one that can't be given.

    header: the value of x-penstock-receipt, which counts before the body's field.
    given: whether the endpoint gives receipts.
    """
    field = getattr(request, "penstock_receipt", None) or ""
    name, wish = ("x-penstock-receipt", header) if header else ("penstock_receipt", field)
    if wish in ("", "0"):
        return ""
    if wish not in WISHES:
        reason = f"{clip(wish, 40)} isn't allowed; allowed: {', '.join(WISHES)}"
    elif not given:
        reason = (
            "/v1/chat/completions, /v1/completions, /v1/responses and /v1/messages give"
            " receipts; this path doesn't"
        )
    elif receipts is None:
        reason = "this server gives none; its operator can enable that with --receipt-key-file"
    else:
        return wish
    raise InvalidRequest(f"{name}: {reason}", param=name, code="unsupported_value")


async def receipted(job: Job, asked: AskedModel, wish: str, receipts: Receipts | None) -> Job:
    """Returns the job, with a reply that ends in a receipt if the client asked for one. Raises
    InvalidRequest where the answer could not be computed from it."""
    if receipts is None or not wish:
        return job
    refused = "use_beam_search and best_of" if job.search is not None else ""
    refused = refused or ("pictures, sounds and videos" if job.media is not None else "")
    if refused:
        raise InvalidRequest(f"there are no receipts for {refused}", code="unsupported_value")
    params, reply = await receipts.receipted(
        job.prompt_token_ids, job.params, job.reply, asked, wish
    )
    return replace(job, params=params, reply=reply)
