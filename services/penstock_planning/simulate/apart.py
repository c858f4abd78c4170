"""Prompts that some replicas compute for the others, which fetch their KV and answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.client.routing import Routing
from penstock.errors import InvalidRequest
from penstock.protocol.common import Stopping
from penstock.protocol.from_frontend import Submit
from penstock_planning.simulate.replica import SimulatedReplica
from penstock_planning.simulate.routing import routing_request

_ONE_TOKEN = Stopping(max_tokens=1, ignore_eos=True)
"""Stops a prompt that is computed for another replica; nothing of its output is used."""


def check_apart(prefill: int, replicas: int, least_tokens: int, *, has_disk: bool) -> None:
    """Raises InvalidRequest where no replica would answer, or two places would be asked for
    blocks."""
    if not 0 <= prefill < replicas:
        raise InvalidRequest(
            f"0 to {replicas - 1} of {replicas} replicas can be for prefill only, not {prefill}"
        )
    if least_tokens < 1:
        raise InvalidRequest(
            f"prompts to compute ahead must have at least 1 token, not {least_tokens}"
        )
    if prefill and has_disk:
        raise InvalidRequest(
            "a simulated replica can fetch blocks from others or have a disk, not both"
        )


class PromptsApart:
    """The first `count` replicas compute prompts of `least_tokens` or more for the others, as
    engine cores of role prefill do; all the rest is the others'.

    num_computed: prompts that were, so far.
    """

    def __init__(
        self,
        replicas: Sequence[SimulatedReplica],
        count: int,
        least_tokens: int,
        router: Routing,
    ) -> None:
        self.answering = list(replicas[count:])
        self.num_computed = 0
        self._computing = list(replicas[:count])
        self._least_tokens = least_tokens
        self._router = router

    def first_part(self, submit: Submit) -> tuple[SimulatedReplica, Submit] | None:
        """Returns the replica that computes the prompt, and what it is asked; None if one replica
        does all of the request."""
        if not self._computing or len(submit.prompt_token_ids) < self._least_tokens:
            return None
        replica, _ = self._router.choose(routing_request(submit), self._computing)
        self.num_computed += 1
        return replica, msgspec.structs.replace(submit, stopping=_ONE_TOKEN, session=None)
