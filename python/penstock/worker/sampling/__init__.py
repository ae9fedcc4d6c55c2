"""What sequences may ask of the sampler, and the tensors that hold it on the device."""
