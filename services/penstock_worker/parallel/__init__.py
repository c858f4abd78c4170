"""One model over several ranks: tensor parallel inside a stage, pipeline parallel over stages.

place        where a rank stands among its group
shard        which part of the model a rank has: plain arithmetic
ranks        what models and runners say to the other ranks; ALONE where there are none
group        the process groups of one forming, by torch.distributed
rendezvous   the port that is kept for a group's store, and finding one another there
membership   a worker's part in groups, one after the other; its watchdog
report       what a rank tells the engine core of a step
stage_runner executes plans in stages before the last, which sample nothing

`place`, `rendezvous`, `membership` and `report` are used before torch is imported.
"""
