"""Claims as data, and their verdicts."""
