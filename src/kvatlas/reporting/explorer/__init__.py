"""The explorer: one page with all arms, prompts and outputs inside."""
