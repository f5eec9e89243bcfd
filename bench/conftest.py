"""Files that pytest must not collect here, because they need the peer's package."""

collect_ignore = ["quax_values.py"]
