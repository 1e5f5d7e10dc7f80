"""Measurements: whole paths beside plain copies in the same run, as ratios."""
