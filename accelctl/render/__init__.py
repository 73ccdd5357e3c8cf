"""Model records to text, table, JSON, JUnit: the sole writers of stdout; notes.py is the sole writer of stderr."""
