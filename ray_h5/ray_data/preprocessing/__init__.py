"""Ray's preprocessors over the arithmetic of `ray_h5.transforms`."""
