"""The embedded lab's tasks: prompts and traces made here, nothing to download."""
