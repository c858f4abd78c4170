"""How it is put together elsewhere: containers, load balancer, Prometheus, Grafana, Kubernetes.

local   haproxy and Prometheus of this folder as plain processes, for tests and measurements
"""
