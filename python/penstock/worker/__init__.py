"""The shard worker: one process, one rank, one device. It runs the steps that the router plans."""
