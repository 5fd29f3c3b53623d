"""The tasks' official figures, counted as the official scripts count; percentages, 0 to 100."""
