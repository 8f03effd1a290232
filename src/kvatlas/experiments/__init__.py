"""What one cell of the grid does: read its inputs, run the model, write its trials."""
