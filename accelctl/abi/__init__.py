"""Public contracts between accelctl and a chip. A chip imports from here, from model and from hal, and from nothing
else of ours.
"""
