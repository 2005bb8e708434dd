"""The mathematics of the recipe as functions of tensors: advantages, aggregation, losses and length penalty."""
