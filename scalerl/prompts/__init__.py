"""Which prompt comes next: reading and splitting data sets, and the curriculum over them."""
