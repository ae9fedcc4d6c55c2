"""Steps and settings as plain values, and their conversion from and to protobuf."""
