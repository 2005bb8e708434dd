"""Rollouts that programs of agents make: an endpoint of the OpenAI protocol over the engines of a run."""
