"""Callbacks that run inside other trainers. Import them by name; the package imports none of them."""
