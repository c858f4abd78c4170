"""Requests that leave an engine core before it does."""

from __future__ import annotations

from itertools import islice

from penstock.client.fleet import Fleet
from penstock.client.placement import OpenRequest
from penstock.client.session import EngineSession


def take_away(session: EngineSession, fleet: Fleet, most: int) -> list[OpenRequest]:
    """Takes up to `most` requests from an engine core that hands over. Returns what is to be
    submitted again: none where no other one is ready that computes alike."""
    numbers = session.fingerprint, session.weights
    if not any(
        each.ready and not each.prefills_from and (each.fingerprint, each.weights) == numbers
        for each in fleet.candidates(session)
    ):
        return []
    unfinished = (request for request in session.open.values() if not request.finished)
    return [session.give_up(request) for request in list(islice(unfinished, most))]
