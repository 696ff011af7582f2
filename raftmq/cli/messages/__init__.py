"""Commands about messages: send, read, pop, settle, find and trace them."""
