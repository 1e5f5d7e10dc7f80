"""What the daemon does with L3: loads into the arena, and write-behind from it."""
