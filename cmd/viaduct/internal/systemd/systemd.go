// Package systemd implements the protocol between a service manager and a service: sockets the
// manager opened for the service, the readiness notice of the service, and the watchdog. These are
// sd_listen_fds(3), sd_notify(3) and sd_watchdog_enabled(3), without libsystemd.
package systemd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// firstSocket is the descriptor of the first socket the manager passes.
const firstSocket = 3

// A Socket is a TCP listener or a UDP socket opened by the service manager.
type Socket struct {
	Listener net.Listener // nil for a UDP socket
	Packets  *net.UDPConn // nil for a listener
}

// Addr returns the address the socket is bound to.
func (s Socket) Addr() netip.AddrPort {
	var a netip.AddrPort
	if s.Listener != nil {
		a = s.Listener.Addr().(*net.TCPAddr).AddrPort()
	} else {
		a = s.Packets.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Sockets holds the sockets passed by the manager and not yet taken by a listener. The zero value
// has no sockets. Sockets is safe for concurrent use.
type Sockets struct {
	mu   sync.Mutex
	left []Socket // guarded by mu
}

// Inherited returns the sockets passed at the start of this process. Inherited removes the
// variables of the sockets from the environment, so that no child process uses the sockets. Another
// kind of socket is an error.
func Inherited() (*Sockets, error) {
	pid, fds := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	if pid == "" || pid != strconv.Itoa(os.Getpid()) {
		return &Sockets{}, nil // for another process, or for none
	}
	for _, v := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(v)
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 0 || n > 1024 {
		return nil, fmt.Errorf("LISTEN_FDS=%q is no count of sockets", fds)
	}
	s := &Sockets{}
	for i := range n {
		sock, err := open(firstSocket + i)
		if err != nil {
			return nil, fmt.Errorf("socket %d of the service manager: %w", i+1, err)
		}
		s.left = append(s.left, sock)
	}
	return s, nil
}

// open makes a Socket with a copy of the descriptor fd, and closes fd.
func open(fd int) (Socket, error) {
	f := os.NewFile(uintptr(fd), "socket "+strconv.Itoa(fd))
	if f == nil {
		return Socket{}, os.ErrInvalid
	}
	defer f.Close() // the Socket has a copy, which child processes do not inherit
	l, lerr := net.FileListener(f)
	if tl, ok := l.(*net.TCPListener); ok {
		return Socket{Listener: tl}, nil
	}
	if l != nil {
		l.Close()
		return Socket{}, fmt.Errorf("a listener of %s, want tcp or udp", l.Addr().Network())
	}
	c, err := net.FilePacketConn(f)
	if err != nil {
		return Socket{}, lerr
	}
	if u, ok := c.(*net.UDPConn); ok {
		return Socket{Packets: u}, nil
	}
	c.Close()
	return Socket{}, fmt.Errorf("a socket of %s, want tcp or udp", c.LocalAddr().Network())
}

// fits reports whether a socket bound to at serves a listener for host and port: the ports are
// equal, and the address is equal or unspecified.
func fits(at netip.AddrPort, host string, port uint16) bool {
	if port == 0 || at.Port() != port {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "" || at.Addr().IsUnspecified() || err == nil && ip.Unmap() == at.Addr()
}

func (s *Sockets) take(address string, ok func(Socket) bool) (Socket, bool) {
	host, p, err := net.SplitHostPort(address)
	if err != nil {
		return Socket{}, false
	}
	port, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return Socket{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range s.left {
		if ok(k) && fits(k.Addr(), host, uint16(port)) {
			s.left = append(s.left[:i:i], s.left[i+1:]...)
			return k, true
		}
	}
	return Socket{}, false
}

// Listener takes the TCP listener for an address (host:port). It returns nil if there is none. The
// caller owns the result.
func (s *Sockets) Listener(address string) net.Listener {
	k, _ := s.take(address, func(k Socket) bool { return k.Listener != nil })
	return k.Listener
}

// Packets takes the UDP socket for an address (host:port). It returns nil if there is none. The
// caller owns the result.
func (s *Sockets) Packets(address string) *net.UDPConn {
	k, _ := s.take(address, func(k Socket) bool { return k.Packets != nil })
	return k.Packets
}

// Left returns the addresses of the sockets not yet taken.
func (s *Sockets) Left() (list []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.left {
		list = append(list, k.Addr())
	}
	return list
}

// Notify sends lines such as READY=1 to the service manager. Without a service manager, Notify does
// nothing.
func Notify(lines ...string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	if name[0] != '/' && name[0] != '@' {
		return fmt.Errorf("NOTIFY_SOCKET=%q is no unix socket", name)
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte(strings.Join(lines, "\n")))
	return err
}

// WatchdogInterval returns how often the service manager expects a WATCHDOG=1 notice; 0 means
// never.
func WatchdogInterval() (time.Duration, error) {
	s := os.Getenv("WATCHDOG_USEC")
	if s == "" {
		return 0, nil
	}
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 || n > int64(time.Duration(1<<63-1)/time.Microsecond) {
		return 0, errors.New("WATCHDOG_USEC=" + s + " is no time in microseconds")
	}
	return time.Duration(n) * time.Microsecond, nil
}
