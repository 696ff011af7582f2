"""Networks that can fail, between real processes: a proxy, or network namespaces.

Start reading at `protocol`, then `rules` (who reaches whom) and `proxy`.
"""
