"""One tenant that asks for all that is allowed, beside another's ordinary streams.

edges      requests at the edge of every bound       mallory    sends them, in a process of its own
alice      the ordinary streams                      watching   memory, restarts and lost sessions
report     table and plot
"""
