"""Seconds: operators, collectives, gradients, and what of them hides behind what."""
