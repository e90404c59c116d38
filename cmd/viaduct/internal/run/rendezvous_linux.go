//go:build linux && (amd64 || arm64)

package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/sockdiag"
)

// How supervisors of a host find each other. For each place where the program listens, a supervisor
// has a unix socket in the abstract namespace, a part of the network namespace. The name of the
// socket is made of the place and the user. Both sides serve only processes of their own user, as
// reported by the kernel.

const (
	// pairTimeout bounds an answer of the other supervisor.
	pairTimeout = time.Second
	// knockTimeout bounds the connection to a program's listener for a pair. If the listener's
	// queue is full, the connecting program uses plain TCP and waits there.
	knockTimeout   = 100 * time.Millisecond
	maxPairMessage = 1024
)

// A pairRequest asks for a connection. The message carries an end of a pair.
type pairRequest struct {
	To   netip.AddrPort `json:"to"`
	From netip.AddrPort `json:"from"` // port 0: any
}

// A pairAnswer grants the request, or has the reason of the refusal.
type pairAnswer struct {
	From netip.AddrPort `json:"from,omitzero"`
	Why  string         `json:"why,omitempty"`
}

// pairAddr returns the unix address of the supervisor of a place.
func pairAddr(at netip.AddrPort) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("@viaduct-run/1/%d/%s", os.Geteuid(), at)}
}

// sameUser reports whether the process at the other end of a unix socket has the same user as this
// process. A user without a number in our namespace is never the same.
func sameUser(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	same := false
	raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		same = err == nil && int(cred.Uid) == os.Geteuid() && cred.Uid != overflowUID
	})
	return same
}

// overflowUID is the kernel's number for users without a number in this user namespace.
const overflowUID = 65534

// askForPair passes an end of a pair to the listening program's supervisor. It returns the address
// the connecting program shows. The error is errNoPair if no listening supervisor of the same user
// is found.
func askForPair(to, from netip.AddrPort, end int) (netip.AddrPort, error) {
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	places := []netip.Addr{to.Addr(), any6}
	if to.Addr().Is4() {
		places = []netip.Addr{to.Addr(), any4, any6}
	}
	for _, a := range places {
		c, err := net.DialUnix("unixpacket", nil, pairAddr(netip.AddrPortFrom(a, to.Port())))
		if err != nil {
			continue
		}
		defer c.Close()
		if !sameUser(c) {
			return from, errNoPair
		}
		c.SetDeadline(time.Now().Add(pairTimeout))
		b, _ := json.Marshal(pairRequest{To: to, From: from})
		if _, _, err := c.WriteMsgUnix(b, unix.UnixRights(end), nil); err != nil {
			return from, err
		}
		buf := make([]byte, maxPairMessage)
		n, err := c.Read(buf)
		if err != nil {
			return from, err
		}
		var ans pairAnswer
		if err := json.Unmarshal(buf[:n], &ans); err != nil {
			return from, err
		}
		if ans.Why != "" {
			return from, errors.New(ans.Why)
		}
		if !oneFamily(ans.From, to) {
			return from, errors.New("the other supervisor gives no address of the connection's family")
		}
		return ans.From, nil
	}
	return from, errNoPair
}

// servePairs answers the requests for pairs at a place, until the service is closed.
func (s *supervisor) servePairs(svc *service) {
	for {
		c, err := svc.meet.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors are free
			time.Sleep(shortageWait)
			continue
		}
		if s.spare.lent.Load() {
			c.Close()
			continue
		}
		go func() {
			defer c.Close()
			if !sameUser(c) {
				return
			}
			c.SetDeadline(time.Now().Add(pairTimeout))
			ans := s.givePair(svc, c)
			b, _ := json.Marshal(ans)
			c.Write(b)
		}()
	}
}

// givePair delivers an end of a pair to the program's listener.
func (s *supervisor) givePair(svc *service, c *net.UnixConn) pairAnswer {
	refuse := func(err error) pairAnswer { return pairAnswer{Why: err.Error()} }
	b, oob := make([]byte, maxPairMessage), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return refuse(err)
	}
	end, err := oneRight(oob[:oobn])
	if err != nil {
		return refuse(err)
	}
	unix.CloseOnExec(end)
	var r pairRequest
	if err = json.Unmarshal(b[:n], &r); err == nil {
		if err = svc.place.takes(r.To); err == nil && !oneFamily(r.From, r.To) {
			err = errors.New("the request gives no address of the connection's family")
		}
	}
	if err != nil {
		unix.Close(end)
		return refuse(err)
	}
	d := &delivery{fd: end, remote: r.From, pair: &pair{shadow: -1}, local: r.To}
	a := &arrival{kept: d}
	if err := s.knock(r.To, r.From.Addr(), a, knockTimeout); err != nil {
		unix.Close(end)
		if err == unix.ECONNREFUSED {
			s.checkListener(svc)
		}
		return refuse(err)
	}
	if r.From.Port() == 0 {
		r.From = netip.AddrPortFrom(r.From.Addr(), a.from.Port())
	}
	return pairAnswer{From: r.From}
}

// takes returns an error unless the kernel would choose the listener of this place for a connection
// to the address to.
func (p place) takes(to netip.AddrPort) error {
	any := p.addr.Addr().IsUnspecified() && (p.dual || p.addr.Addr().Is4() == to.Addr().Is4())
	if p.addr.Port() != to.Port() || p.addr.Addr() != to.Addr() && !any {
		return errors.New("the listener is at another address")
	}
	all, err := sockdiag.Listeners(to.Port())
	if err != nil {
		return err
	}
	for _, l := range all {
		if a := l.Addr; a != p.addr.Addr() &&
			(a == to.Addr() || any && a.IsUnspecified() && a.Is4() == to.Addr().Is4()) {
			return errors.New("another listener is nearer to the address")
		}
	}
	return nil
}

// oneFamily reports whether both addresses are valid and can belong to the same connection.
func oneFamily(a, b netip.AddrPort) bool {
	return a.IsValid() && b.IsValid() && a.Addr().Is4() == b.Addr().Is4()
}

// oneRight returns the only descriptor of a control message. The buffer has room for two; surplus
// descriptors are closed.
func oneRight(oob []byte) (int, error) {
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(ms) != 1 {
		return -1, errors.Join(errors.New("run: no descriptor came"), err)
	}
	fds, err := unix.ParseUnixRights(&ms[0])
	if err != nil || len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return -1, errors.Join(errors.New("run: not one descriptor came"), err)
	}
	return fds[0], nil
}
