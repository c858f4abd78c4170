"""Sessions over ZeroMQ: nothing is lost silently, and nothing of an ended session is acted on.

wire       the header of every frame: engine boot, kind, number
numbering       one session's numbering and clocks, without I/O
inbound    what server and client have in common: an inbox, and turns that are bounded in time
server        the engine's side: one ROUTER, many sessions
client       the dialling side: one DEALER at a time, a fresh identity for each session
heartbeat  the thread that keeps sessions alive while their owner is busy
events     what server and client hand to their owner
"""
