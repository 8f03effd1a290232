"""A configuration becomes cells: reading, validation, arms, studies; pure functions that import no torch."""
