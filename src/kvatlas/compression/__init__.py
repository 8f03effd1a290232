"""KV cache compression: budgets, eviction and clustering policies, quantizers."""
