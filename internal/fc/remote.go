package fc

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
)

// maxRemotes is the maximum number of logins of a port.
const maxRemotes = 4096

// A Remote is another N_Port: this port is logged in with the Remote, or a login is in progress.
// Other packages must not change the fields.
type Remote struct {
	Addr     Addr
	PortName WWN
	NodeName WWN
	RxSize   int  // the port's receive data field size in bytes
	Class2   bool // the port supports class 2
	CISeqCnt bool // both sides count SEQ_CNT continuously

	p         *NPort
	loggedIn  bool
	gone      bool // the port was logged out and removed from the table
	suspended bool // no data may be sent until the link or the mapping is verified
	verifying bool
	since     Time // time of the login
	loginOX   uint16
	nextSeq   uint8
	waiters   []func(now Time, r *Remote, err error)
	plogi     bool // this port's PLOGI is outstanding

	credit  int
	out     []*class2Frame // sent frames without an ACK
	waiting []*class2Frame // frames that wait for credit
	free    []*class2Frame
}

// LoggedIn reports whether the login has succeeded and has not ended.
func (r *Remote) LoggedIn() bool { return r.loggedIn && !r.gone }

// Ready reports whether data may be sent to r now. It may if r is logged in, the link is up and the
// mapping is verified. [FCVI 7.7.1]
func (r *Remote) Ready() bool { return r.LoggedIn() && !r.suspended && r.p.up }

// Remote returns the login with the port at a, or nil if there is none.
func (p *NPort) Remote(a Addr) *Remote {
	if r := p.remotes[a]; r != nil && r.LoggedIn() {
		return r
	}
	return nil
}

// RemoteByName returns the login with the port whose Port_Name is w, or nil if there is none.
func (p *NPort) RemoteByName(w WWN) *Remote {
	for _, r := range p.remotes {
		if r.PortName == w && r.LoggedIn() {
			return r
		}
	}
	return nil
}

func (p *NPort) sortedRemotes() []*Remote {
	all := make([]*Remote, 0, len(p.remotes))
	for _, r := range p.remotes {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Remote) int { return cmp.Compare(a.Addr, b.Addr) })
	return all
}

// seqID returns the next SEQ_ID for frames to the port at a. [FCVI 5.5]
func (p *NPort) seqID(a Addr) uint8 {
	if r := p.remotes[a]; r != nil {
		r.nextSeq++
		return r.nextSeq
	}
	p.seq++
	return p.seq
}

// NextSeqID returns the SEQ_ID of the next sequence to r. [FCVI-5.5-1] [FCVI-5.5-2]
func (r *Remote) NextSeqID() uint8 {
	r.nextSeq++
	return r.nextSeq
}

// Login logs in to the port at a unless this port is already logged in there. It calls done once,
// possibly before Login returns.
func (p *NPort) Login(now Time, a Addr, done func(now Time, r *Remote, err error)) {
	r := p.remotes[a]
	if r != nil && r.LoggedIn() && !r.suspended {
		done(now, r, nil)
		return
	}
	if !p.up || p.state < Registering || a == p.id || a == 0 {
		done(now, nil, ErrOffline)
		return
	}
	if r == nil {
		if len(p.remotes) >= maxRemotes {
			done(now, nil, ErrOffline)
			return
		}
		r = &Remote{Addr: a, p: p, loginOX: Unassigned}
		p.remotes[a] = r
	}
	r.waiters = append(r.waiters, done)
	if r.plogi || r.verifying {
		return
	}
	r.plogi = true
	l := p.params(ELSPLOGI)
	p.request(now, a, TypeELS, l.Append(nil), 3, func(now Time, reply []byte, err error) {
		r.plogi = false
		if r.gone {
			return
		}
		if err == nil {
			l, _, err = ParseLogin(reply)
		}
		if err != nil {
			if r.loggedIn && !r.suspended {
				return // the peer's PLOGI arrived first
			}
			p.drop(now, r, err)
			return
		}
		if r.loggedIn && r.PortName != l.PortName {
			p.logout(now, r, ErrLoggedOut)
			return
		}
		r.login(now, &l)
	})
}

// login stores the peer's parameters and calls the callbacks waiting for the login.
func (r *Remote) login(now Time, l *Login) {
	r.PortName, r.NodeName = l.PortName, l.NodeName
	r.RxSize = MaxData
	if n := int(l.RxSize); n >= MinRxSize && n < MaxData {
		r.RxSize = n
	}
	if c := l.Class[2]; c.Options&ClassValid != 0 && int(c.RxSize) >= MinRxSize && int(c.RxSize) < r.RxSize {
		r.RxSize = int(c.RxSize)
	}
	c2 := l.Class[1]
	r.Class2 = c2.Options&ClassValid != 0 && r.p.cfg.Class2
	r.credit = max(1, int(c2.EECredit))
	r.CISeqCnt = l.Features&FeatCISeqCnt != 0
	if !r.loggedIn {
		r.since = now
	}
	r.loggedIn = true
	wasSuspended := r.suspended
	r.suspended = false
	r.wake(now, nil)
	if wasSuspended {
		r.p.resume(now, r)
	}
}

func (r *Remote) wake(now Time, err error) {
	w := r.waiters
	r.waiters = nil
	for _, done := range w {
		if err != nil {
			done(now, nil, err)
		} else {
			done(now, r, nil)
		}
	}
}

// drop removes a Remote whose login has failed or ended, and reports err to waiting callbacks.
func (p *NPort) drop(now Time, r *Remote, err error) {
	was := r.loggedIn
	r.gone, r.loggedIn = true, false
	r.dropClass2()
	if p.remotes[r.Addr] == r {
		delete(p.remotes, r.Addr)
	}
	r.wake(now, err)
	if was {
		p.log("logged out", "remote", r.Addr.String())
		for _, u := range p.upper {
			if u != nil {
				u.LoggedOut(now, r)
			}
		}
	}
}

// logout ends the login with r at this side. The caller sends a LOGO if needed.
func (p *NPort) logout(now Time, r *Remote, err error) { p.drop(now, r, err) }

// Logout sends LOGO to r and ends the login. [FCVI 7.7.1]
// [FCVI-7.7-8]
func (p *NPort) Logout(now Time, r *Remote) {
	if r.gone {
		return
	}
	p.sendLOGO(now, r.Addr, p.id)
	p.drop(now, r, ErrLoggedOut)
}

// sendLOGO sends a LOGO to the port at a, to end the login with this port's address id.
func (p *NPort) sendLOGO(now Time, a, id Addr) {
	p.stats.LogosSent++
	p.request(now, a, TypeELS, LOGO{ID: id, PortName: p.cfg.PortName}.Append(nil), 2, func(Time, []byte, error) {})
}

// logoutAll ends every login, and sends a LOGO for each login with this port's address id. If id is
// 0, no LOGO is sent.
func (p *NPort) logoutAll(now Time, id Addr) {
	for _, r := range p.sortedRemotes() {
		if id != 0 && r.loggedIn && !r.Addr.WellKnown() {
			p.sendLOGO(now, r.Addr, id)
		}
		p.drop(now, r, ErrLoggedOut)
	}
}

// suspendAll stops data to every port until the port's mapping is verified. Logins to fabric
// services end, because each registration renews such logins.
func (p *NPort) suspendAll() {
	for _, r := range p.sortedRemotes() {
		r.suspended = true
		if r.Addr.WellKnown() {
			r.gone, r.loggedIn = true, false
			delete(p.remotes, r.Addr)
		}
	}
}

func (p *NPort) resume(now Time, r *Remote) {
	r.suspended = false
	r.wake(now, nil)
	for _, u := range p.upper {
		if u != nil {
			u.Resumed(now, r)
		}
	}
}

// inquire asks the directory whether the port of r still has its name, because the directory
// answers at once even if the port has gone. Without a directory, inquire asks the port itself.
// [FCVI 7.7.5] [FCVI-7.7-6]
func (p *NPort) inquire(now Time, r *Remote) {
	if !p.directory || !r.loggedIn || r.verifying {
		p.verify(now, r)
		return
	}
	r.suspended, r.verifying = true, true
	p.Query(now, NSGPNID, NSBody{}.ID(r.Addr), func(now Time, reply []byte, err error) {
		r.verifying = false
		if r.gone {
			return
		}
		var rejected *CTError
		switch {
		case errors.As(err, &rejected):
			p.drop(now, r, ErrLoggedOut) // the directory does not know the port any more, so no LOGO is sent
		case len(reply) < 8: // also without an answer
			p.verify(now, r)
		case WWN(binary.BigEndian.Uint64(reply)) != r.PortName:
			p.Logout(now, r)
		default:
			p.resume(now, r)
		}
	})
}

// verify asks the port at r.Addr by ADISC whether it is still the port of the login. If the names
// have changed, or without an answer, the login ends. [FCVI 7.7.3] [FCVI 7.7.5]
func (p *NPort) verify(now Time, r *Remote) {
	if r.verifying || r.gone {
		return
	}
	if !r.loggedIn {
		if !r.plogi {
			p.drop(now, r, ErrOffline)
		}
		return
	}
	r.suspended, r.verifying = true, true
	req := ADISC{Cmd: ELSADISC, PortName: p.cfg.PortName, NodeName: p.cfg.NodeName, ID: p.id,
		HardAddr: Addr(p.link.ALPA)}
	p.request(now, r.Addr, TypeELS, req.Append(nil), 3, func(now Time, reply []byte, err error) {
		r.verifying = false
		if r.gone {
			return
		}
		var a ADISC
		if err == nil {
			a, _, err = ParseADISC(reply)
		}
		if err == ErrOffline {
			return // the link was lost again, so the next verification decides
		}
		if err != nil || a.PortName != r.PortName || a.NodeName != r.NodeName || a.ID != r.Addr {
			p.Logout(now, r)
			return
		}
		p.resume(now, r)
	})
}
