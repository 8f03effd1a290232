"""Measurements that are made by hand; `benchmarks.report` puts them into the documentation."""
