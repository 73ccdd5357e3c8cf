"""Measurements: `make bench`. Only ratios within one run count; milliseconds depend on the machine."""
