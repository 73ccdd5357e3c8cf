"""The steps of `accelctl bringup`, one module each."""
