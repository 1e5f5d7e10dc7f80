"""The gRPC server, and pages served over it to clients without shared memory."""
