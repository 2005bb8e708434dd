"""What a run looks like: terminal, pictures, the report page and the live page."""
