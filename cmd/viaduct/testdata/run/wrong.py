# Prints what connects of a connected socket say that the kernel refuses, and the socket's peer
# after each.
import ctypes, errno, socket, sys

port = int(sys.argv[1])
l = socket.create_server(("127.0.0.1", port))
c = socket.create_connection(("127.0.0.1", port))
s, _ = l.accept()
libc = ctypes.CDLL(None, use_errno=True)
inet = socket.AF_INET.to_bytes(2, sys.byteorder) + bytes(14)
unix = socket.AF_UNIX.to_bytes(2, sys.byteorder) + b"/nothing".ljust(108, b"\0")
none = bytes(16)
for what, address, size in [
    ("no address", None, 16),
    ("no length", none, 0),
    ("one byte", none, 1),
    ("too long", none, 129),
    ("of IPv4, short", inet, 2),
    ("of IPv4, port 0", inet, 16),
    ("of a path", unix, 110),
]:
    r = libc.connect(c.fileno(), address, size)
    print(what, r, errno.errorcode[ctypes.get_errno()], c.getpeername())
