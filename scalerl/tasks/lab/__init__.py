"""Tasks of the embedded lab. Their prompts and traces are generated here; nothing is downloaded."""
