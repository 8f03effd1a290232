"""The source studies' published numbers beside this run's."""
