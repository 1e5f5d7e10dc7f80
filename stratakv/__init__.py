"""The public face: what users import, and the command that gathers the verbs."""
