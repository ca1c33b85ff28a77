"""Download, decoding, caching and loading of images."""
