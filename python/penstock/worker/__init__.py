"""The shard worker: one process, one rank, one device. It computes what the router decides."""
