"""Language models and their inside: sources, loading, chat prompts, the attention tap and the KV cache."""
