"""The front end's half of the protocol, shared by the gateway and the Python library.

engine_client   submits to engine cores, and submits again after a crash
client_view     what it can be asked about them
dispatch        which engine core has which request, and what becomes of it when one goes
session         the session with one engine core; fleet: all of them
endpoints       where they are: lists and names; engine_state: what they say of themselves
routing         which of them gets a request; served_model: the model that all of them serve
refusals        requests that can't run
placement         where a request has been; waiting_room: where it waits for an engine core to come
pacing          how fast requests are submitted; blame: which deaths are held against one
generation      one request on its way: token ids in, text deltas out; deltas: what it gives
timing          where a request's time went
pool_request    one request to a pooling model
pooling_inputs  texts, pairs and ids on their way to one
sequence_text   detokenising and stop strings of one sequence
sampling        the worker's and the engine's share of SamplingParams
beam            beam search; beam_params: what it is asked for; beam_request: its request
best_of         more sequences than are wanted, of which the likeliest are kept
hypothesis      what these two give
model_text      tokenizer and chat template, as the engine's Welcome brought them
"""

from penstock.client.beam import beam_search
from penstock.client.beam_hypothesis import Hypothesis
from penstock.client.beam_params import BeamSearchParams
from penstock.client.best_of import BestOf, best_of
from penstock.client.deltas import SequenceDelta
from penstock.client.engine_client import EngineClient
from penstock.client.generation import Generation
from penstock.client.model_text import ModelText

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
