"""The attach socket: how workers on this machine come to the arena, reserve, commit and end."""
