"""What a prompt is worth: one verifier a file, each a function (completion text, reference answer) -> passed."""
