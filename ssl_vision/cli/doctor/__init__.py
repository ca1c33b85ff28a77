"""``ssl-vision doctor``, which checks packages, hardware and data sets."""
