"""`accelctl bench`: how fast a device and the path to it are, against what is possible here.

run          chooses the device, measures all figures in turns, within a time budget
subject      what is measured: an open device, and a service of our own on it
parts        one file per part: what each figure calls, and its floor
ceilings     what the link could carry
statistics   medians, and intervals that assume nothing about the noise
compare      two reports: what got slower, and what the noise hides
store        a report as a file, and back
golden       results instead of times
"""
