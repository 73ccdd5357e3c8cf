"""The dashboards of `accelctl top`. Textual is imported here and nowhere else.

What a screen shows is made by plain functions from a Snapshot and its history into lines of text (frame.py, views/);
Textual gets finished lines, the keys and the terminal (app.py, pane.py, terminal.py).
"""
