"""Is a file what the current code and configuration would make: fingerprints, dependencies, checksums, staleness."""
