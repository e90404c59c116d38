package fc

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"
)

// These are the default timers of FC-FS. [FCVI 8.3]
const (
	DefaultEDTOV = 2 * time.Second // [FCVI-8.3-1]
	DefaultRATOV = 10 * time.Second
)

// ServiceOXID is the first OX_ID of the pool for a port's link service and directory exchanges. The
// FC-4 has the lower half. [FCVI 5.4]
const ServiceOXID = 0x8000

// These are errors of requests of an NPort.
var (
	ErrOffline   = errors.New("fc: port is offline")
	ErrTimeout   = errors.New("fc: no answer")
	ErrLoggedOut = errors.New("fc: logged out")
	ErrNoMatch   = errors.New("fc: no port answers to that address")
)

// A Sender is the transmitting side of a port's link.
type Sender interface {
	// Send transmits f or queues it. When Send has returned, the memory of f belongs to the caller
	// again. A frame for which the link has no room is lost, as on any link.
	Send(f *Frame)
}

// A LinkInfo describes a link that has come up.
type LinkInfo struct {
	Loop     bool  // arbitrated loop
	ALPA     uint8 // this port's AL_PA on the loop; 0 if there is no loop
	FLPort   bool  // the loop has a fabric port
	Verified bool  // the link was only reset, so every address is unchanged
}

// A Topology is the kind of network an NPort found at its link.
type Topology uint8

// These are the topologies. [FCVI 7.7]
const (
	TopologyUnknown Topology = iota
	PointToPoint
	PrivateLoop
	PublicLoop
	FabricAttached
)

func (t Topology) String() string {
	switch t {
	case TopologyUnknown:
		return "unknown"
	case PointToPoint:
		return "point-to-point"
	case PrivateLoop:
		return "private loop"
	case PublicLoop:
		return "public loop"
	case FabricAttached:
		return "fabric"
	}
	return fmt.Sprintf("topology(%d)", uint8(t))
}

// A PortState is the state of an NPort.
type PortState uint8

// These are the states of an NPort.
const (
	Offline     PortState = iota // no link
	LoggingIn                    // the link is up; FLOGI, or its point-to-point form, is in progress
	Registering                  // the port has an address and registers with the directory
	Online                       // the port may log in to other ports
)

func (s PortState) String() string {
	switch s {
	case Offline:
		return "offline"
	case LoggingIn:
		return "logging in"
	case Registering:
		return "registering"
	case Online:
		return "online"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// An Upper is the FC-4 above a port. The port calls its methods, and they may call the port.
type Upper interface {
	// PortOnline is called when the port can reach other ports.
	PortOnline(now Time)
	// Frame handles a device data frame of the FC-4's TYPE from a port that is logged in. f is
	// valid during the call.
	Frame(now Time, r *Remote, f *Frame)
	// LoggedOut is called when the login with r ended, whichever side ended it.
	LoggedOut(now Time, r *Remote)
	// Resumed is called when data may flow to r again after verification.
	Resumed(now Time, r *Remote)
	// Acked is called for each received ACK_1. f is the acknowledged class 2 frame, valid during
	// the call.
	Acked(now Time, r *Remote, f *Frame)
	// Failed is called if f, a class 2 frame sent by the port, was rejected, or was not
	// acknowledged after all retransmissions.
	Failed(now Time, r *Remote, f *Frame, reason uint8)
	// Abort handles an ABTS for an exchange of the FC-4. It returns false if the exchange is
	// unknown.
	Abort(now Time, r *Remote, f *Frame) bool
}

// A PortConfig describes an NPort. The names must not be zero.
type PortConfig struct {
	PortName WWN
	NodeName WWN
	IPs      []netip.Addr  // host addresses of the port
	RxSize   int           // receive data field size in bytes, 256 to 2112; 0 means 2112
	Class2   bool          // the port offers class 2
	EECredit int           // number of class 2 frames that a peer may have unacknowledged; 0 means 32
	EDTOV    time.Duration // E_D_TOV until a fabric announces its value; 0 means 2 s
	RATOV    time.Duration
	OXSeed   uint16       // changes the first service OX_ID, so that a restarted port does not repeat OX_IDs
	NoSCR    bool         // the port does not ask the fabric controller to report state changes
	Logger   *slog.Logger // nil disables logging
}

// PortStats has the counters of an NPort. Counters never decrease.
type PortStats struct {
	RecvFrames      uint64
	SentFrames      uint64
	BadEOF          uint64 // frames that ended in EOFni or EOFa
	WrongDID        uint64 // frames addressed to another port
	NotLoggedIn     uint64 // data frames from ports that are not logged in
	LogosSent       uint64
	UnknownExchange uint64 // replies and ACKs that match no exchange
	UnknownType     uint64
	Malformed       uint64 // frames whose payload is too short or contradictory
	Rejected        uint64 // requests answered by LS_RJT
	FARPForged      uint64 // FARP frames that contradict their source address, or that match no request
	Duplicates      uint64 // copies of requests that were received before
	Retries         uint64 // requests that were sent again
	Timeouts        uint64 // requests without an answer
	Relogins        uint64 // PLOGI from a port that was logged in
	Busy            uint64 // class 2 frames sent again after BSY
	Resent          uint64 // class 2 frames sent again because no ACK arrived
}

// An NPort is the state machine of one N_Port or NL_Port. An NPort is not safe for concurrent use.
type NPort struct {
	cfg    PortConfig
	out    Sender
	upper  [256]Upper // by TYPE
	timers Timers
	state  PortState
	topo   Topology
	link   LinkInfo
	up     bool

	id         Addr
	fabricPort WWN // F_Port_Name of the last fabric, or 0
	fabricName WWN
	inOrder    bool // the path keeps the order of frames
	directory  bool // the directory server has accepted the registration
	edtov      time.Duration
	ratov      time.Duration

	remotes  map[Addr]*Remote
	exch     map[uint16]*exchange
	nextOX   uint16
	ips      [][16]byte
	farps    []*farpSearch // searches of this port
	farpAns  []farpSeen    // requests answered recently
	aborts   map[abortKey]*abort
	accepted Addr // address to which the answer to FLOGI was sent
	p2pOX    uint16
	flogiX   *exchange // our FLOGI
	seq      uint8
	logoAt   map[Addr]Time // time of the last LOGO to a port that was not logged in
	epoch    uint32        // number of link events; a callback from before the latest event does nothing

	stats PortStats
	tx    Frame
	txBuf []byte
}

// NewNPort returns an offline port. The port sends through out.
func NewNPort(cfg PortConfig, out Sender) *NPort {
	if cfg.RxSize == 0 {
		cfg.RxSize = MaxData
	}
	cfg.RxSize = min(max(cfg.RxSize, MinRxSize), MaxData) &^ 3
	if cfg.EECredit == 0 {
		cfg.EECredit = 32
	}
	if cfg.EDTOV == 0 {
		cfg.EDTOV = DefaultEDTOV
	}
	if cfg.RATOV == 0 {
		cfg.RATOV = DefaultRATOV
	}
	p := &NPort{
		cfg: cfg, out: out, edtov: cfg.EDTOV, ratov: cfg.RATOV,
		remotes: map[Addr]*Remote{}, exch: map[uint16]*exchange{}, logoAt: map[Addr]Time{},
		aborts: map[abortKey]*abort{}, p2pOX: Unassigned,
		nextOX: ServiceOXID + cfg.OXSeed%0x7000,
	}
	for _, a := range cfg.IPs {
		p.ips = append(p.ips, FARPIP(a))
	}
	return p
}

// Register makes u the receiver of frames with TYPE t.
func (p *NPort) Register(t Type, u Upper) { p.upper[t] = u }

// State returns the state of the port.
func (p *NPort) State() PortState { return p.state }

// Topology returns the kind of network the port is attached to.
func (p *NPort) Topology() Topology { return p.topo }

// ID returns the port's address, or 0 without an address.
func (p *NPort) ID() Addr { return p.id }

// Name returns the Port_Name.
func (p *NPort) Name() WWN { return p.cfg.PortName }

// Node returns the Node_Name.
func (p *NPort) Node() WWN { return p.cfg.NodeName }

// InOrder reports whether frames between two ports arrive in order. They do on a loop, on a
// point-to-point link, and on a fabric that has granted sequential delivery. [FCVI 3]
func (p *NPort) InOrder() bool { return p.inOrder }

// HasDirectory reports whether the port is registered with a directory server.
func (p *NPort) HasDirectory() bool { return p.directory }

// EDTOV returns the current error detect time-out.
func (p *NPort) EDTOV() time.Duration { return p.edtov }

// RATOV returns the current resource allocation time-out.
func (p *NPort) RATOV() time.Duration { return p.ratov }

// Stats returns a copy of the counters.
func (p *NPort) Stats() PortStats { return p.stats }

// Timers returns the port's timers. The FC-4 above may share the timers.
func (p *NPort) Timers() *Timers { return &p.timers }

// Deadline returns the time when the driver must call Tick, or Never if no timer is set.
func (p *NPort) Deadline() Time { return p.timers.Deadline() }

// Tick runs the expired timers.
func (p *NPort) Tick(now Time) { p.timers.Run(now) }

// IPForms returns the port's host addresses in 128-bit form. The caller must not modify the slice.
func (p *NPort) IPForms() [][16]byte { return p.ips }

func (p *NPort) log(msg string, args ...any) {
	if p.cfg.Logger != nil {
		p.cfg.Logger.Info(msg, append([]any{"port", p.cfg.PortName.String(), "id", p.id.String()}, args...)...)
	}
}

// setState enters state s, and reports Online to the FC-4s. No other code assigns p.state.
func (p *NPort) setState(now Time, s PortState) {
	if p.state == s {
		return
	}
	p.log("port state", "from", p.state.String(), "to", s.String(), "topology", p.topo.String())
	p.state = s
	if s == Online {
		for _, u := range p.upper {
			if u != nil {
				u.PortOnline(now)
			}
		}
	}
}

// LinkUp is called when the link has come up, and again after each link initialisation (LIP,
// NOS/OLS) without a LinkDown. The topology decides which logins survive. [FCVI 7.7]
func (p *NPort) LinkUp(now Time, info LinkInfo) {
	if p.up && info.Verified {
		return // after a link reset no N_Port_ID has changed [FCVI 7.7.1] [FCVI-7.7-1]
	}
	p.up, p.link = true, info
	p.epoch++
	switch {
	case info.Loop && !info.FLPort:
		p.loopUp(now, info)
	case info.Loop:
		p.publicLoopUp(now, info)
	default:
		if p.topo == PointToPoint {
			p.logoutAll(now, 0) // both ports are implicitly logged out [FCVI 7.7.2]
			p.id = 0
		}
		p.suspendAll()
		p.flogi(now)
	}
}

// LinkDown is called when the link has failed. Outstanding exchanges fail. Logins are kept until
// the next LinkUp shows whether they are still valid, or until R_A_TOV has passed.
func (p *NPort) LinkDown(now Time) {
	if !p.up {
		return
	}
	p.up = false
	p.epoch++
	p.setState(now, Offline)
	p.suspendAll()
	p.failExchanges(now, ErrOffline)
	epoch := p.epoch
	p.timers.After(now+p.ratov, func(now Time) {
		if p.epoch == epoch && !p.up {
			p.logoutAll(now, 0)
		}
	})
}

// transmit sends f, whose addresses and delimiters are set. It drops f if the link is down.
func (p *NPort) transmit(f *Frame) {
	if !p.up {
		return
	}
	p.stats.SentFrames++
	p.out.Send(f)
}

// Receive handles a frame from the link. f is not used after Receive has returned.
func (p *NPort) Receive(now Time, f *Frame) {
	p.stats.RecvFrames++
	if f.EOF.Invalid() { // [FCVI 8.4] D7
		p.stats.BadEOF++ // [FCVI-8.4-8] [FCFS-2.2-3]
		return
	}
	if !p.up {
		return
	}
	if f.DID != p.id && !p.mayConcern(f) {
		p.stats.WrongDID++
		return
	}
	switch {
	case f.RCtl.IsLinkControl():
		p.receiveLinkControl(now, f)
	case f.RCtl == RCtlABTS || f.RCtl == RCtlBAAcc || f.RCtl == RCtlBARjt:
		p.receiveBLS(now, f)
	case f.RCtl == RCtlNOP:
	case f.Type == TypeELS && f.RCtl == RCtlELSReq:
		p.receiveELS(now, f)
	case f.Type == TypeELS && f.RCtl == RCtlELSReply, f.Type == TypeCT && f.RCtl == RCtlSolControl:
		p.receiveReply(now, f)
	case f.RCtl.IsDeviceData():
		p.receiveData(now, f)
	default:
		p.stats.UnknownType++
	}
}

// mayConcern reports whether a frame for another address still concerns this port. Such frames are
// broadcasts, requests to the F_Port on a point-to-point link, the LS_ACC assigning a new address,
// and on a point-to-point link a PLOGI assigning an address.
func (p *NPort) mayConcern(f *Frame) bool {
	if f.DID == AddrBroadcast {
		return f.SID != p.id
	}
	if f.Type != TypeELS || p.state >= Registering {
		return f.DID == AddrFPort && !p.link.Loop && f.Type == TypeELS && p.topo != FabricAttached
	}
	if f.DID == AddrFPort {
		return !p.link.Loop
	}
	return f.RCtl == RCtlELSReply || f.RCtl == RCtlELSReq && CmdOf(f.Payload) == ELSPLOGI && !p.link.Loop
}

// receiveData passes a device data frame to the FC-4 of its TYPE.
func (p *NPort) receiveData(now Time, f *Frame) {
	u := p.upper[f.Type]
	r := p.remotes[f.SID]
	class2 := f.SOF.Class() == Class2
	switch {
	case u == nil:
		p.stats.UnknownType++
		if class2 {
			p.reject(f, RejectType)
		}
		return
	case f.DID == AddrBroadcast:
		p.stats.WrongDID++
		return
	case r == nil || !r.LoggedIn():
		// The sender is informed by an explicit LOGO. [FCVI 6.1] [FCVI 7.7.1]
		p.stats.NotLoggedIn++ // [FCVI-6.1-2] [FCFS-2.7-8]
		if class2 {
			p.reject(f, RejectLogin)
		}
		if r == nil || !r.plogi { // if this port's PLOGI is outstanding, the frame has overtaken the answer
			p.logoStranger(now, f.SID)
		}
		return
	case class2 && !p.cfg.Class2:
		p.reject(f, RejectClass)
		return
	case f.DataLen() > p.cfg.RxSize:
		p.stats.Malformed++
		if class2 {
			p.reject(f, RejectLength)
		}
		return
	}
	if class2 {
		p.ack(f)
	}
	u.Frame(now, r, f)
}

// reply sets p.tx to the header of an answer to f and returns p.tx.
func (p *NPort) reply(f *Frame, rctl RCtl, t Type) *Frame {
	tx := &p.tx
	*tx = Frame{Header: Header{
		RCtl: rctl, DID: f.SID, SID: f.DID, Type: t,
		SeqID: f.SeqID, OXID: f.OXID, RXID: f.RXID,
	}}
	tx.FCtl = (^f.FCtl & FCtlExchResponder)
	return tx
}

// logoStranger sends a LOGO to a port that sent data without being logged in, at most once per
// E_D_TOV and port.
func (p *NPort) logoStranger(now Time, a Addr) {
	if t, ok := p.logoAt[a]; ok && now < t+p.edtov {
		return
	}
	if len(p.logoAt) > 256 {
		clear(p.logoAt)
	}
	p.logoAt[a] = now
	p.sendLOGO(now, a, p.id)
}

// LinkLost is LinkDown for a link that will not come up again: every login ends at once.
func (p *NPort) LinkLost(now Time) {
	p.LinkDown(now)
	p.logoutAll(now, 0)
}
