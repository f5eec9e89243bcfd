"""Other libraries, one module each."""
