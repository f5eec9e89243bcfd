"""What all ready types build on: arrays with structure, products by labels, linear parts."""
