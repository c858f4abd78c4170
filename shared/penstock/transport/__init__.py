"""Sessions over ZeroMQ: nothing is lost silently, and nothing of an ended session is acted on.

wire    the header of every frame: engine boot, kind, number
lane    one session's numbering and clocks, without I/O
hub     the engine's side: one ROUTER, many sessions
link    the dialling side: one DEALER at a time, a fresh identity for each session
events  what both hand to their owner
"""
