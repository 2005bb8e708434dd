"""The look-ups of examples/own_environment.py, whose replies fail by chance: the same reply may come another time."""

import random

import own_environment


class Lookups(own_environment.Lookups):
    """Look-ups in which a share of all replies raises an error, whatever the policy said."""

    def __init__(self, hops=1, seed=0, share=0.02):
        """Receive the parameters of the configuration."""
        super().__init__(hops, seed)
        self.share = share

    def reply(self, row, messages):
        """Fail, or reply as the look-ups do."""
        if random.random() < self.share:
            raise ConnectionError("the table is away")
        return super().reply(row, messages)
