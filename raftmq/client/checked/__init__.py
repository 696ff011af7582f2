"""The checked mode of a client: `connect(url, check=True)`. Loaded only then, as it needs numpy.

Start reading at `checking`. `digests` and `verdict` also serve the embedded queue's own check.
"""
