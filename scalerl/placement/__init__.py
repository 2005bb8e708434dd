"""What a run needs and how fast it goes, reckoned before it starts: memory, GPUs, a simulation. It loads no torch."""
