"""Answer on a port until stopped. Argument: the port.

Stands in for the client, so that peers can prove the way to task 0 while no run is active.
"""

import errno
import socket
import sys

with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as server:
    if server.family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("", int(sys.argv[1])))
    except OSError as error:
        # A run's own server listens there: it answers as well.
        sys.exit(0 if error.errno == errno.EADDRINUSE else str(error))
    server.listen()
    while True:
        server.accept()[0].close()
