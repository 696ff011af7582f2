"""TLS: certificates and the names in them, contexts that follow their files, encrypted sockets.

Nothing here waits: the streams of the broker and of the client do. Source: RFC 8446 (TLS 1.3).
"""
