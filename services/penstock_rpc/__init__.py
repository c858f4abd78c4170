"""gRPC: services over the same application that answers HTTP."""

import os

# Preparers are forks of this process that never touch gRPC. Its own handlers would have each fork
# write to files that the fork has closed, and abort it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
