"""Inference libraries beside this one, each in a process of its own environment, no server.

work      the pieces of work, as in the table of targets
systems   which Python runs which runner, and what each can do
child     a runner's process: JSON lines in and out, stopped dead while another computes
measure   rounds of all work on all systems in turn
report    tables, chart, fractions of the machine's limit
runners/  one small script per library, run by that library's own environment
"""
