"""What the simulated chip computes: kernels, how they are told what to do, and the arithmetic.

kernels    the table of kernels, and what they deliberately lack
shapes     which calls make sense: what the driver refuses before anything runs
reader     instructions, taken apart strictly and remembered
contract   the Ops contract: the table, and a ring that takes instructions
engine     the arithmetic units: tensors as views of VRAM. Only this module and those it imports load numpy
"""
