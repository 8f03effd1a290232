"""What the Snakefile and its jobs ask: parameters of rules, resources, cost, plan, prefill files, tables, results."""
