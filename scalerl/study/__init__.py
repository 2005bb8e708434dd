"""Studies of several recipes: which to go on with. Needs numpy and scipy, and knows nothing of trainers or files."""
