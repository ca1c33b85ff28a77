"""Random views and corruptions of images."""
