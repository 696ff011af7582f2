"""The processor time of the parts without I/O, each by itself."""
