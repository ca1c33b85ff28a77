"""Random views of images."""
