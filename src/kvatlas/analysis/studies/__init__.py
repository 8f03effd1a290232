"""Trials to the tables of each study."""
