"""The `kvatlas` command."""
