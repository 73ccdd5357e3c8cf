"""Records of kernels against the machine as it is now: what is stale, what still holds, what two files differ in."""
