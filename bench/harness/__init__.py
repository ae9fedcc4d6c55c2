"""What the benchmarks share: load, servers, checkpoints, figures."""
