"""The wire: generated stubs, protobuf to kv_types and back, one error table, the client's channel."""
