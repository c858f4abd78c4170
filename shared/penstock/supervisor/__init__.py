"""`penstock serve`: starts the processes of one machine, restarts what dies, stops them all.

restarts     when a dead child is started again, and when that is given up (sans I/O)
child        one child process: start, watch, stop
listener     the HTTP socket, bound once and handed to every gateway
rolling      restarts the gateways one after the other
readiness    asks the system whether it is ready
replicas     engine cores and their workers: what each process is told
shares       what each gets of the machine
gpus         which GPUs there are, and whose each is
executors    where workers run: processes here, or actors of a Ray cluster
ray          what holds those actors
report       tells the program that started us, over a pipe
system       all of these put together
"""
