"""Statistics of numbers: paired tests, intervals, multiplicity; knows no trials, arms or files."""
