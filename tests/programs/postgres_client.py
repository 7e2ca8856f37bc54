#!/usr/bin/env python3
"""Drives a PostgreSQL server over a unix socket: `postgres_client.py FOLDER ROWS`; prints what psql says.

One backend sorts a large table and joins it with itself by hash, both in memory.
"""

import subprocess
import sys
import time

CONNECT_S = 60

SQL = """
SET enable_mergejoin = off; SET enable_nestloop = off; SET enable_incremental_sort = off;
CREATE TEMP TABLE sale AS
  SELECT i AS id, (i * 7919::bigint) % 1000003 AS part, (i * 31) % 365 AS day,
    (i * 69621::bigint) % 500009 || ' is the customer, sold on day ' || (i * 31) % 365
      || ', pending, to be shipped' AS note
  FROM generate_series(1, {rows}) AS i;
ANALYZE sale;
SELECT count(*), sum(place * (part % 97)) FROM
  (SELECT part, row_number() OVER (ORDER BY note DESC, part, id) AS place FROM sale) AS sorted;
SELECT count(*), sum(a.part * b.day % 1009), min(a.note), max(b.note) FROM sale AS a
  JOIN sale AS b ON a.part = (b.id * 7919::bigint) % 1000003 AND a.note = b.note;
SELECT md5(string_agg(day || ':' || amount, ',' ORDER BY day)) FROM
  (SELECT day, count(DISTINCT part) AS amount FROM sale GROUP BY day) AS days;
"""


def main():
    """Waits for the server, then runs the statements."""
    psql = ["psql", "-h", sys.argv[1], "-U", "postgres", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
    deadline = time.monotonic() + CONNECT_S
    ask = [*psql, "-c", "SELECT 1", "postgres"]
    while subprocess.run(ask, capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline:
            sys.exit(f"postgres_client: nobody answers after {CONNECT_S} s")
        time.sleep(0.1)
    script = SQL.format(rows=sys.argv[2])
    sys.exit(subprocess.run([*psql, "postgres"], input=script, text=True, check=False).returncode)


if __name__ == "__main__":
    main()
