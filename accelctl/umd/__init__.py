"""The user-mode-driver service: ops become instructions, in one process for all clients of a chip.

Whoever loads gRPC comes through here first. Unless it is told otherwise it logs to standard error, some of it at level
INFO (a connection that ends), which is nothing for a person at a terminal: what went wrong is told in our own words. It
reads the environment when it is loaded.
"""

import os

if "GRPC_VERBOSITY" not in os.environ and "GRPC_TRACE" not in os.environ:
    os.environ["GRPC_VERBOSITY"] = "NONE"
