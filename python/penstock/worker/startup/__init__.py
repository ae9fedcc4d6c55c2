"""Loading a model: device, weights, memory, compilation, warm-up."""
