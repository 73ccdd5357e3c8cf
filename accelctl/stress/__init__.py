"""Lifecycles run against a driver, the books that count what came back, and what follows from them.

A return code says that a call worked once. This part asks what a hundred thousand of them leave behind, and answers in
a word that rests on named counters: clean, leak, cache, not ours, or inconclusive with what would decide it.
"""
