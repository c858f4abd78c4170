"""gRPC: services over the same application that answers HTTP."""
