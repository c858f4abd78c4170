"""The whole system by compose, on any machine with a container engine.

docker       the two command lines: the engine's and compose's
dotenv       what later `docker compose up`s find again
system       build, up, down, containers, sizes, memory
first_token  how long the first answer takes
load         streams that repeat what was cut, each compared with its undisturbed twin
blows        kill -9 of a container, and restarts one after the other
targets      whether Prometheus sees every process
check        what is to be shown, in its order
report       the table
"""
