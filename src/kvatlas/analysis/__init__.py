"""From trials to tables: statistics, claims and the comparison with published numbers; imports no torch."""
