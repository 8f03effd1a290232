"""One storage format, one file. Nothing is imported here: the registry names each module."""
