"""Which process uses which GPU."""
