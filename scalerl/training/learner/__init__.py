"""Learners: the implementations that train the policy."""
