"""What PyTorch computes for us, and how it is told what to do.

platform   PyTorch itself, imported on the first question, and its devices
line       work of one session, done in order by one thread
kernels    the table of kernels
contract   the Ops and Queue contracts: the table, and rings that take instructions
engine     tensors as views of the session's memory. Only this module and those it imports load torch with themselves
"""
