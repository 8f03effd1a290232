"""One method, one file, which registers it. Nothing is imported here, so that a cell loads only its own method."""
