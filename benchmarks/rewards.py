"""A reward that takes no time and varies within a group: whether the first word ends in an even digit."""


def even_start(completions, **columns):
    """Return 1.0 for completions whose first word ends in an even digit."""
    return [float(text.strip()[:4].rstrip()[-1:] in set("02468")) for text in completions]
