"""One model over several ranks: tensor parallel inside a stage, pipeline parallel over stages.

`place`, `rendezvous`, `membership` and `report` are used before torch is imported.
"""
