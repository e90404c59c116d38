package fc

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"
)

// Defaults of the timers (FC-FS). [FCVI 8.3]
const (
	DefaultEDTOV = 2 * time.Second // [FCVI-8.3-1]
	DefaultRATOV = 10 * time.Second
)

// ServiceOXID is the first OX_ID of the pool for a port's link service and directory exchanges. The
// FC-4 has the lower half. [FCVI 5.4]
const ServiceOXID = 0x8000

// Errors that requests of an NPort complete with.
var (
	ErrOffline   = errors.New("fc: port is offline")
	ErrTimeout   = errors.New("fc: no answer")
	ErrLoggedOut = errors.New("fc: logged out")
	ErrNoMatch   = errors.New("fc: no port answers to that address")
)

// A Sender is the way out of a port: the transmitting side of its link.
type Sender interface {
	// Send transmits f or queues it. Everything f refers to belongs to the
	// caller again when Send returns. A frame the link cannot take any more
	// is lost, as on any link.
	Send(f *Frame)
}

// LinkInfo says what kind of link came up.
type LinkInfo struct {
	Loop     bool  // arbitrated loop
	ALPA     uint8 // this port's AL_PA on the loop; 0 without one
	FLPort   bool  // the loop has a fabric port
	Verified bool  // link reset only: no address can have changed
}

// A Topology is what an NPort found at the other end of its link.
type Topology uint8

// Topologies. [FCVI 7.7]
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

// A PortState says how far a port has come.
type PortState uint8

// States of an NPort.
const (
	Offline     PortState = iota // no link
	LoggingIn                    // link up, FLOGI or its point-to-point form under way
	Registering                  // has an address, telling the directory
	Online                       // may log in to other ports
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

// An Upper is the FC-4 above a port. Its methods run inside calls of the
// port and may call it.
type Upper interface {
	// PortOnline is called when the port can reach others.
	PortOnline(now Time)
	// Frame takes a device data frame of the FC-4's TYPE from a port that is
	// logged in. f is valid during the call.
	Frame(now Time, r *Remote, f *Frame)
	// LoggedOut is called when the login with r ended, whichever side ended it.
	LoggedOut(now Time, r *Remote)
	// Resumed is called when data may flow to r again after verification.
	Resumed(now Time, r *Remote)
	// Acked is called for each ACK_1 to a class 2 frame f of ours, which is valid during the call.
	Acked(now Time, r *Remote, f *Frame)
	// Failed is called when f, a class 2 frame of ours, was rejected or not acknowledged, however
	// often it was sent.
	Failed(now Time, r *Remote, f *Frame, reason uint8)
	// Abort takes an ABTS for an exchange of the FC-4 and reports whether
	// the exchange was known.
	Abort(now Time, r *Remote, f *Frame) bool
}

// A PortConfig describes an NPort. Names must not be zero.
type PortConfig struct {
	PortName WWN
	NodeName WWN
	IPs      []netip.Addr  // host addresses of the port
	RxSize   int           // receive data field size, 256 to 2112; 0 means 2112
	Class2   bool          // offer class 2
	EECredit int           // class 2 frames a peer may have unacknowledged; 0 means 32
	EDTOV    time.Duration // where no fabric says otherwise; 0 means the default
	RATOV    time.Duration
	OXSeed   uint16       // varies the first service OX_ID, so that restarts differ
	NoSCR    bool         // do not ask the fabric controller for state changes
	Logger   *slog.Logger // nil is silent
}

// PortStats counts what an NPort saw. Every counter only grows.
type PortStats struct {
	RecvFrames      uint64
	SentFrames      uint64
	BadEOF          uint64 // frames that ended in EOFni or EOFa
	WrongDID        uint64 // addressed to another port
	NotLoggedIn     uint64 // data frames from ports that are not logged in
	LogosSent       uint64
	UnknownExchange uint64 // replies and ACKs that belong to nothing
	UnknownType     uint64
	Malformed       uint64 // payload too short or contradictory
	Rejected        uint64 // requests answered LS_RJT
	FARPForged      uint64 // FARP frames whose claims contradict their addresses or no request
	Duplicates      uint64 // requests seen before
	Retries         uint64 // requests sent again
	Timeouts        uint64 // requests given up
	Relogins        uint64 // PLOGI from a port that was logged in
	Busy            uint64 // class 2 frames sent again after BSY
	Resent          uint64 // class 2 frames sent again for want of an ACK
}

// An NPort is the state machine of one N_Port or NL_Port. It is not safe for
// concurrent use.
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
	fabricPort WWN // F_Port_Name of the last fabric, 0 if there was none
	fabricName WWN
	inOrder    bool // the path keeps the order of frames
	directory  bool // the directory server took our registration
	edtov      time.Duration
	ratov      time.Duration

	remotes  map[Addr]*Remote
	exch     map[uint16]*exchange
	nextOX   uint16
	ips      [][16]byte
	farps    []*farpSearch // searches of ours
	farpAns  []farpSeen    // requests answered of late
	aborts   map[abortKey]*abort
	accepted Addr // where the answer to FLOGI was sent to
	p2pOX    uint16
	flogiX   *exchange // our FLOGI
	seq      uint8
	logoAt   map[Addr]Time // last LOGO to a port that was not logged in
	epoch    uint32        // counts link events: work of older epochs is void

	stats PortStats
	tx    Frame
	txBuf []byte
}

// NewNPort returns a port that is offline and sends through out.
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
		remotes: map[Addr]*Remote{}, exch: map[uint16]*exchange{}, logoAt: map[Addr]Time{}, aborts: map[abortKey]*abort{}, p2pOX: Unassigned,
		nextOX: ServiceOXID + cfg.OXSeed%0x7000,
	}
	for _, a := range cfg.IPs {
		p.ips = append(p.ips, FARPIP(a))
	}
	return p
}

// Register makes u the receiver of frames of type t.
func (p *NPort) Register(t Type, u Upper) { p.upper[t] = u }

// State returns how far the port has come.
func (p *NPort) State() PortState { return p.state }

// Topology returns what the port is attached to.
func (p *NPort) Topology() Topology { return p.topo }

// ID returns the port's address, 0 if it has none.
func (p *NPort) ID() Addr { return p.id }

// Name returns the Port_Name.
func (p *NPort) Name() WWN { return p.cfg.PortName }

// Node returns the Node_Name.
func (p *NPort) Node() WWN { return p.cfg.NodeName }

// InOrder reports whether frames between two ports arrive in order: on a loop,
// point to point, or on a fabric that granted sequential delivery. [FCVI 3]
func (p *NPort) InOrder() bool { return p.inOrder }

// HasDirectory reports whether a directory server knows this port.
func (p *NPort) HasDirectory() bool { return p.directory }

// EDTOV returns the error detect time-out in force.
func (p *NPort) EDTOV() time.Duration { return p.edtov }

// RATOV returns the resource allocation time-out in force.
func (p *NPort) RATOV() time.Duration { return p.ratov }

// Stats returns a copy of the counters.
func (p *NPort) Stats() PortStats { return p.stats }

// Timers returns the port's timers, which the FC-4 above may share.
func (p *NPort) Timers() *Timers { return &p.timers }

// Deadline returns when Tick wants to be called.
func (p *NPort) Deadline() Time { return p.timers.Deadline() }

// Tick runs the timers that have expired.
func (p *NPort) Tick(now Time) { p.timers.Run(now) }

// IPForms returns the port's host addresses in their 128-bit form.
func (p *NPort) IPForms() [][16]byte { return p.ips }

func (p *NPort) log(msg string, args ...any) {
	if p.cfg.Logger != nil {
		p.cfg.Logger.Info(msg, append([]any{"port", p.cfg.PortName.String(), "id", p.id.String()}, args...)...)
	}
}

// setState is the only place that assigns the state.
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

// LinkUp is called when the link came up, and again after each link
// initialisation (LIP, NOS/OLS) that did not pass through LinkDown. Which
// logins survive follows the topology. [FCVI 7.7]
func (p *NPort) LinkUp(now Time, info LinkInfo) {
	if p.up && info.Verified {
		return // link reset: no N_Port_ID changes [FCVI 7.7.1] [FCVI-7.7-1]
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
			p.logoutAll(now, 0) // implicit logout of both [FCVI 7.7.2]
			p.id = 0
		}
		p.suspendAll()
		p.flogi(now)
	}
}

// LinkDown is called when the link failed. Exchanges under way fail; logins
// are kept until the next LinkUp shows whether they are still good, or until
// R_A_TOV has passed.
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

// transmit sends f, whose addresses and delimiters are set.
func (p *NPort) transmit(f *Frame) {
	if !p.up {
		return
	}
	p.stats.SentFrames++
	p.out.Send(f)
}

// Receive takes a frame from the link. f is not kept.
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

// mayConcern reports whether a frame for another address is for us after all:
// broadcasts, requests to the F_Port on a point-to-point link, the LS_ACC that
// brings our new address, and a PLOGI that does so point to point.
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

// receiveData hands a device data frame to the FC-4 of its TYPE.
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
		// An explicit LOGO informs the sender. [FCVI 6.1] [FCVI 7.7.1]
		p.stats.NotLoggedIn++ // [FCVI-6.1-2] [FCFS-2.7-8]
		if class2 {
			p.reject(f, RejectLogin)
		}
		if r == nil || !r.plogi { // else it overtook the answer to our PLOGI
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

// reply fills p.tx with the header of an answer to f and returns it.
func (p *NPort) reply(f *Frame, rctl RCtl, t Type) *Frame {
	tx := &p.tx
	*tx = Frame{Header: Header{
		RCtl: rctl, DID: f.SID, SID: f.DID, Type: t,
		SeqID: f.SeqID, OXID: f.OXID, RXID: f.RXID,
	}}
	tx.FCtl = (^f.FCtl & FCtlExchResponder)
	return tx
}

// logoStranger sends a LOGO to a port that sent data without being logged in,
// at most one per E_D_TOV and port.
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

// LinkLost is LinkDown for a link that will not come back: every login ends
// at once.
func (p *NPort) LinkLost(now Time) {
	p.LinkDown(now)
	p.logoutAll(now, 0)
}
