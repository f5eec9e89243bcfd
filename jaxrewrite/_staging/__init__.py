"""From a function to a rewritten program, and its calls."""
