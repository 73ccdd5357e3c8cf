"""Independent judges: other programs' answers to the same questions, for tests here and in the guest."""
