"""ioctl numbers, structures and constants of kernel drivers: one module per kernel header, and only what is used.

Every fact here was evaluated by a compiler from the public headers: Linux 7.3.4 (compared with 6.1 and 6.12), and for
``nvidia`` NVIDIA's open-gpu-kernel-modules 525 to 595. Tests compile the same structures against the headers that are
installed, and compare with a table that was made independently.

Numbers of DRM, KFD and dma-heap carry the size of the structure, yet these kernels dispatch on the command alone:
a shorter structure is filled up with zeros, of a longer one the kernel uses what it knows, and it copies back at most
the caller's size. So the newest layout works on older kernels too, where all that is new in it stays 0. What grew is
marked where it is defined. iommufd and VFIO put the size inside the structure, NVIDIA's resource manager wants the
exact size of the running release, and NVIDIA's UVM says no size at all.
"""
