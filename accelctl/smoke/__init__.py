"""Proof that a chip computes: op cases, a float64 reference, comparison with stated tolerances, and evidence."""
