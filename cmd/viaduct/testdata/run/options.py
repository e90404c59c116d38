# Prints what the options and calls of a connection say, in a table that is compared
# between runs: PORT to listen at. Both ends are in this process.
import errno, fcntl, select, socket, struct, sys, termios

here = ("127.0.0.1", int(sys.argv[1]))
l = socket.create_server(here)

def pair():
    c = socket.create_connection(here)
    s, _ = l.accept()
    return c, s

def say(name, f):
    try: r = f()
    except OSError as e: r = errno.errorcode.get(e.errno, e.errno)
    print("%s: %s" % (name, r), flush=True)

def at(c, level, name, value):
    c.setsockopt(level, name, value)
    return c.getsockopt(level, name)

T, I, S = socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.SOL_SOCKET
for who in (0, 1):
    p = pair()
    c, o = p[who], p[1 - who]
    say("NODELAY", lambda: at(c, T, socket.TCP_NODELAY, 1))
    say("CORK", lambda: at(c, T, socket.TCP_CORK, 1))
    say("uncork", lambda: at(c, T, socket.TCP_CORK, 0))
    say("KEEPIDLE", lambda: at(c, T, socket.TCP_KEEPIDLE, 77))
    say("KEEPCNT", lambda: at(c, T, socket.TCP_KEEPCNT, 7))
    say("USER_TIMEOUT", lambda: at(c, T, socket.TCP_USER_TIMEOUT, 7000))
    say("QUICKACK", lambda: c.setsockopt(T, socket.TCP_QUICKACK, 1))
    say("MAXSEG", lambda: c.getsockopt(T, socket.TCP_MAXSEG) > 0)
    say("INFO", lambda: c.getsockopt(T, socket.TCP_INFO, 256)[0])
    say("CONGESTION", lambda: c.getsockopt(T, socket.TCP_CONGESTION, 16).strip(b"\0") != b"")
    say("TOS", lambda: at(c, I, socket.IP_TOS, 0x10))
    say("TTL", lambda: at(c, I, socket.IP_TTL, 33))
    say("no such TCP option", lambda: c.getsockopt(T, 9999))
    say("DOMAIN", lambda: c.getsockopt(S, socket.SO_DOMAIN))
    say("PROTOCOL", lambda: c.getsockopt(S, socket.SO_PROTOCOL))
    say("TYPE", lambda: c.getsockopt(S, socket.SO_TYPE))
    say("KEEPALIVE", lambda: at(c, S, socket.SO_KEEPALIVE, 1))
    say("LINGER", lambda: c.getsockopt(S, socket.SO_LINGER, 8))
    say("RCVLOWAT", lambda: at(c, S, socket.SO_RCVLOWAT, 1))
    say("SNDBUF", lambda: at(c, S, socket.SO_SNDBUF, 65536))
    say("ERROR", lambda: c.getsockopt(S, socket.SO_ERROR))
    say("names", lambda: (c.getsockname() == o.getpeername(), c.getpeername() == o.getsockname(), (here in (c.getsockname(), c.getpeername()))))
    say("connect again", lambda: c.connect_ex(here) and errno.errorcode[c.connect_ex(here)])
    say("send", lambda: c.send(b"abc"))
    select.select([o], [], [], 30)
    say("FIONREAD", lambda: struct.unpack("i", fcntl.ioctl(o, termios.FIONREAD, b"\0\0\0\0"))[0])
    say("peek", lambda: o.recv(2, socket.MSG_PEEK))
    say("recv", lambda: o.recv(10))
    say("nothing more", lambda: o.recv(10, socket.MSG_DONTWAIT))
    say("out of band", lambda: c.send(b"!", socket.MSG_OOB))
    say("its arrival", lambda: (select.select([], [], [o], 30)[2] == [o], o.recv(1, socket.MSG_OOB)))
    say("shutdown", lambda: c.shutdown(socket.SHUT_WR))
    say("end", lambda: o.recv(1))
    say("write after it", lambda: c.send(b"x"))
    o.close()
    say("end of the other", lambda: c.recv(1))
    c.close()
