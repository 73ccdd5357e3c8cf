"""The rig: gets two kernels without installing any, boots them on this machine's own files, runs pytest in there."""
