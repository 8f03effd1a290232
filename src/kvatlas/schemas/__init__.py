"""The shapes of the files that people write, as JSON schemas, and the reader that checks a file against its schema."""
