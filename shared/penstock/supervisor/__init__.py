"""`penstock serve`: starts the processes of one machine, restarts what dies, stops them all.

system       all of what follows put together
restarts     when a dead child is started again, and when that is given up (sans I/O)
child        one child process: start, watch, stop
ahead        processes that are forked before the model is known
fork_server  the process that gateways are forks of
front        configures gateways and the others that dial engine cores
rolling      restarts the gateways one after the other, and asks whether one is ready
replicas     engine cores and their workers: settings and share of the machine of each
models       several models, of which some are loaded
preparing    makes prepared folders before anything is started
data_lock    keeps the data folder to one running system
report       reports to the program that started us, over a pipe
"""
