"""Sandboxes for programs of the policy: each runs in a fresh one, without secrets, network or writable files."""
