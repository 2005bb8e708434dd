"""scalerl: reinforcement learning for language models by the ScaleRL recipe, with a forecast of every run's curve.

This file holds the version and nothing else, so that `import scalerl` and `import scalerl.scaling` load no torch.
"""

__version__ = "0.1.0"
