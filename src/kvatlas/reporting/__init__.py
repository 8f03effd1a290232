"""From tables to pages: figures, Jinja templates, cards and publishing; imports no torch."""
