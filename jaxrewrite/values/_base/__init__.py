"""The bases of all ready types: arrays with structure, products by labels, linear parts."""
