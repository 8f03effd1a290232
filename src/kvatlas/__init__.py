"""kvatlas: what it costs to shrink an LLM's KV cache, measured, and the whole paper artifact rebuilt with one command."""

__version__ = "0.1.0"
