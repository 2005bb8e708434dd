"""Programs as answers: extracted from the completion, run in a sandbox, and judged outside it by their output."""
