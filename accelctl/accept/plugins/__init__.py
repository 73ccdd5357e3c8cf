"""What `accelctl backends` does: chips listed, checked against what they promise, made, and kept side by side."""
