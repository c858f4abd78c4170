"""One model over several ranks: tensor parallelism within a stage, pipeline parallelism across
stages.

`place`, `rendezvous`, `membership` and `report` are used before torch is imported, so they must not
import it.
"""
