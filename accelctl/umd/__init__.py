"""The user-mode-driver service: ops become instructions, in one process for all clients of a chip."""
