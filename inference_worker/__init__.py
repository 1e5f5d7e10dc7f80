"""The worker's side: client with the local fast path, and connectors to engines."""
