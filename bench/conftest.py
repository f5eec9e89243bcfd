"""What pytest leaves out here: it can't be imported where the peer isn't installed."""

collect_ignore = ["quax_values.py"]
