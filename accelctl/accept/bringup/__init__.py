"""`accelctl bringup`: the whole acceptance of a machine, step by step, resumable and within a time."""
