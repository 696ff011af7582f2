"""Capture from MariaDB's and MySQL's binary logs.

Start reading at `log_source`, which both share; `mariadb` and `mysql` have what differs, `values`
describes the values of columns, `json_text` those of MySQL's JSON.
"""
