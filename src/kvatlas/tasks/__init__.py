"""Prompt generators and scorers; they know a tokenizer, never a model's inside."""
