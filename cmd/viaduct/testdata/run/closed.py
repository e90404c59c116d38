# Prints what connects say at once after the listener was closed.
import socket, sys

for _ in range(20):
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind(("127.0.0.1", int(sys.argv[1])))
    l.listen()
    c = socket.socket()
    c.connect(l.getsockname())
    s, _ = l.accept()
    at = l.getsockname()
    l.close()
    again = socket.socket()
    print(again.connect_ex(at))
    c.close()
    s.close()
    again.close()
