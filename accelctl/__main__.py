"""`python -m accelctl`: the same entry as the `accelctl` script; works from a plain checkout."""

import sys

from accelctl.cli import main

if __name__ == "__main__":
    sys.exit(main())
