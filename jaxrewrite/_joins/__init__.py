"""Where structures meet: in branches, loops and choices, and where a program writes zeros."""
