"""Commands that run and examine nodes: `serve`, `up`, `down`, `doctor`, `inspect`."""
