"""One host of what averaging.py compares with: `python -m benchmarks._tcp_peer PLAN` is part of a ring or an exchange.

It prints its address and, for each line of standard input, the seconds that one round took here.
"""

from __future__ import annotations

import json
import sys

from benchmarks.averaging import Plan
from benchmarks.plain_tcp import exchange
from benchmarks.ring import average_in_ring


def main() -> None:
    """Do what the plan says."""
    plan = Plan(**json.loads(sys.argv[1]))
    _say([plan.address])
    for _ in sys.stdin:
        if plan.exchange:
            _say(exchange(plan.place, plan.everybody, plan.exchange))
        else:
            _say(average_in_ring(plan.place, plan.everybody, plan.values)[0])


def _say(content: object) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
