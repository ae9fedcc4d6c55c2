"""The launch of steps on the device."""
