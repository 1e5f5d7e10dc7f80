"""The vLLM connector: pages of a running vLLM engine shared through stratakv, and its own prefix cache kept valid."""
