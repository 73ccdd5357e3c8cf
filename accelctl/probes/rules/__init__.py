"""Bus-generic health rules, one file per subject. A file added here is found by its place; nothing else needs to know
it.
"""
