"""One method, one file. Nothing is imported here: the registry names each module, so that a cell loads only its own."""
