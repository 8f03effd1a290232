"""What goes to the Hub: cards, and publishing a report."""
