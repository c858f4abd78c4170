"""Sessions over ZeroMQ: nothing is lost silently, and nothing of an ended session is acted on.

wire             the header of every frame: engine boot, kind, number
session_server   the engine's side: one ROUTER, many sessions
session_client   the dialling side: one DEALER at a time, a fresh identity for each session
inbound          what both have in common: numbers and clocks, an inbox, turns bounded in time
events           what both hand to their owner
heartbeat        the thread that keeps sessions alive while their owner is busy
curve            who may dial over a network, and the keys of those
"""
