"""Developer scripts: what the Makefile runs. None of it is installed with accelctl."""
