"""The user-mode-driver service: ops become instructions, in one process for all clients of a chip."""

import os

# gRPC otherwise restarts its threads in every forked child. Ours (the watched reader, stress workers) speak no gRPC and
# have let go of its descriptors: the restarted poller finds /dev/null where its epoll was and aborts the child.
# Read when gRPC's core is loaded, so it stands before any module here that imports it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
