"""Sampling into Snapshots: sources, one watched child, rings, recordings. Nothing here knows one chip."""
