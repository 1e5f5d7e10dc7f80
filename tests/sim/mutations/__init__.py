"""Breaches of the protocol's rules, as patches to the product, and the seeds of the simulation that find them."""
