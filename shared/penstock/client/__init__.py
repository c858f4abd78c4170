"""The front end's half of the protocol, shared by the gateway and the Python library."""

from penstock.client.beam import beam_search
from penstock.client.beam_params import BeamSearchParams, Hypothesis
from penstock.client.best_of import BestOf, best_of
from penstock.client.deltas import SequenceDelta
from penstock.client.engine_client import EngineClient
from penstock.client.generation import Generation
from penstock.client.served_model import ModelText

__all__ = [
    "BeamSearchParams",
    "BestOf",
    "EngineClient",
    "Generation",
    "Hypothesis",
    "ModelText",
    "SequenceDelta",
    "beam_search",
    "best_of",
]
