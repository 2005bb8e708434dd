"""A reward that costs nothing and varies within a group: whether the completion's first word has an even number."""


def even_start(completions, **columns):
    """Return 1.0 for completions whose first word ends in an even digit."""
    return [float(text.strip()[:4].rstrip()[-1:] in set("02468")) for text in completions]
