"""Memory, sizes, speed and plans of a run before it starts, and its processes as actors of Ray."""
