"""Slow, obvious versions of the models, to hold the fast ones against."""
