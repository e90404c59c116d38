package mapper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
	"viaduct/internal/sockdiag"
	"viaduct/portmap"
)

// The process with the UDP port also listens on a local socket. The name of the socket is derived
// from the UDP address and lies in the abstract namespace of the network namespace. A service
// connects and sends one message for each change of the service's mappings. A mapping lasts as long
// as the connection.

const (
	// answerTimeout bounds an answer of the Port Mapper's process.
	answerTimeout = time.Second
	maxMessage    = 8192
	maxTargets    = 64
)

// A registration is a message of a service. A registration without targets removes the mapping.
type registration struct {
	Service netip.AddrPort   `json:"service"`
	Targets []netip.AddrPort `json:"targets,omitempty"`
}

// An answer holds the reason of a refusal. The reason is empty if the registration was accepted.
type answer struct {
	Why string `json:"why,omitempty"`
}

func meetingAddr(udp netip.AddrPort) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: "@viaduct-portmap/1/" + udp.String()}
}

// dialMapper connects to the process that has bound a UDP address, or the same port on all
// addresses. pid is the number of the process.
func dialMapper(udp netip.AddrPort) (c *net.UnixConn, pid int, err error) {
	at := []netip.AddrPort{udp, netip.AddrPortFrom(netip.IPv6Unspecified(), udp.Port()),
		netip.AddrPortFrom(netip.IPv4Unspecified(), udp.Port())}
	for _, a := range at {
		if c, err = net.DialUnix("unixpacket", nil, meetingAddr(a)); err == nil {
			cred, _ := peerOf(c)
			return c, cred.pid, nil
		}
	}
	return nil, 0, err
}

// Of returns the process taking registrations for the Port Mapper at a UDP port of all addresses,
// or 0 if there is none.
func Of(port uint16) (pid int) {
	c, pid, err := dialMapper(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if err != nil {
		return 0
	}
	c.Close()
	return pid
}

// register sends one registration and waits for the answer. A refusal is an error matching
// errRefused. After any other error, such as no answer in time, register shuts the connection down,
// so that the service looks for another Port Mapper.
func register(c *net.UnixConn, r registration) (err error) {
	defer func() {
		if err != nil && !errors.Is(err, errRefused) {
			c.CloseRead()
			c.CloseWrite()
		}
	}()
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(answerTimeout))
	defer c.SetDeadline(time.Time{})
	if _, err := c.Write(b); err != nil {
		return err
	}
	buf := make([]byte, maxMessage)
	n, err := c.Read(buf)
	if err != nil {
		return err
	}
	var a answer
	if err := json.Unmarshal(buf[:n], &a); err != nil {
		return err
	}
	if a.Why != "" {
		return fmt.Errorf("%w: %s", errRefused, a.Why)
	}
	return nil
}

var errRefused = errors.New("the host's Port Mapper refuses the service")

// Offer enters the registrations of this host's services for the Port Mapper at a UDP address into
// reg, until the returned Closer is closed.
func Offer(udp netip.AddrPort, reg *portmap.Registry) (io.Closer, error) {
	return newTable(reg).offer(udp)
}

// offer takes registrations for the Port Mapper at a UDP address until the listener is closed.
func (t *table) offer(udp netip.AddrPort) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unixpacket", meetingAddr(udp))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // no descriptors are free
				time.Sleep(100 * time.Millisecond)
				continue
			}
			go t.serve(c)
		}
	}()
	return l, nil
}

// serve enters the registrations of one service into the table, and answers each registration,
// until the service's connection ends.
func (t *table) serve(c *net.UnixConn) {
	defer c.Close()
	defer t.drop(c)
	who, err := peerOf(c)
	buf := make([]byte, maxMessage)
	for {
		n, rerr := c.Read(buf)
		if rerr != nil || n == 0 {
			return
		}
		var r registration
		if err == nil {
			err = json.Unmarshal(buf[:n], &r)
		}
		if err == nil {
			err = who.mayRegister(r, sockdiag.Owners)
		}
		if err == nil {
			err = t.set(c, r.Service, r.Targets)
		}
		var a answer
		if err != nil {
			a.Why, err = err.Error(), nil
		}
		b, _ := json.Marshal(a)
		c.SetWriteDeadline(time.Now().Add(answerTimeout))
		if _, werr := c.Write(b); werr != nil {
			return
		}
	}
}

// A peer is the process at the other end of a local socket, as reported by the kernel.
type peer struct{ pid, uid int }

func peerOf(c *net.UnixConn) (p peer, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return p, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = peer{int(cred.Pid), int(cred.Uid)}
		}
	})
	return p, errors.Join(err, cerr)
}

// mayRegister returns an error if p must not register r. Root and the user of this process may
// register any address. Other users may register only services of their own: no other user may
// listen at the conventional port or at the ports of the targets. owners returns the users with a
// listener at a port.
func (p peer) mayRegister(r registration, owners func(port uint16) (uids []int, err error)) error {
	switch {
	case len(r.Targets) > maxTargets:
		return fmt.Errorf("more than %d targets", maxTargets)
	case p.uid == overflowUID && !allUsersKnown():
		return errors.New("the user has no number in the Port Mapper's user namespace")
	case p.uid == 0, p.uid == os.Geteuid(),
		len(r.Targets) == 0: // without targets, p can only remove its own registration
		return nil
	}
	for _, a := range append([]netip.AddrPort{r.Service}, r.Targets...) {
		uids, err := owners(a.Port())
		if err != nil {
			return fmt.Errorf("the owner of the service is unknown: %w", err)
		}
		if len(uids) == 0 {
			return fmt.Errorf("nothing listens at port %d", a.Port())
		}
		for _, uid := range uids {
			if uid != p.uid {
				return fmt.Errorf("another user listens at port %d", a.Port())
			}
		}
	}
	return nil
}

// overflowUID is the kernel's number for users without a number in the process's user namespace.
const overflowUID = 65534

// allUsersKnown reports whether every user of the host has a number in the process's user
// namespace. A map that cannot be read gives false.
func allUsersKnown() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	f := strings.Fields(string(b))
	return err == nil && len(f) == 3 && f[0] == "0" && f[2] == "4294967295"
}

// waitEnd waits until the process at the other end of a local socket has ended. It reads no data.
func waitEnd(c *net.UnixConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	fd := -1
	raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		return
	}
	defer unix.Close(fd)
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	_, _ = sock.Poll(p, -1)
}
