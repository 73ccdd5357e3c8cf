"""Frozen records that every other layer shares.

Nothing here opens a file or knows a chip: a record made from a captured machine and one made from the running kernel
are the same thing.
"""
