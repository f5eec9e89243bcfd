"""What a rewriting does, and why, for people: reports and the look-up of rules."""
