"""What combines the layers below: expectations, differences, captures, and the watched scan that probe runs."""
