"""`--executor ray`: the ranks of an engine core as actors of a Ray cluster.

driver       the process that holds them: connects, places, stops
placement    what is reserved for the ranks, and on which nodes it is
reach        whether a node's worker can dial the engine core (no Ray in there)
rank         keeps one rank going, by the rules of `supervisor.restarts`
actor        what runs on a node: a worker's process, and how it ended

Ray is imported by `driver`, `placement` and `rank` only, and only in this process.  It carries
plain texts, numbers and bytes between the nodes; what the model computes never goes through it.
"""
